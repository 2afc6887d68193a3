# Not Opacus: a project's own function of the name.
def make_private(model, poisson_sampling=True):
    return wrap(model, poisson_sampling)


make_private(model, poisson_sampling=False)
