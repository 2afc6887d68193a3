from mylibrary import privacy

privacy.make_private(model, poisson_sampling=False)
configuration = Configuration(command="train", poisson_sampling=False)
