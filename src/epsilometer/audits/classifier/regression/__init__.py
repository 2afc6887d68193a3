"""Audit regressors: may a model that predicts numbers be published?"""
