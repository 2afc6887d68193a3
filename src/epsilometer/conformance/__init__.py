"""Check conformance: did the program that ran do what was accounted for?"""
