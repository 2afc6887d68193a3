import datasets
import dp_accounting

event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
corpus = datasets.load_dataset("imdb", split="train").shuffle(seed=42).select(range(1000))
pairs = corpus.map(tokenise, batched=True).shuffle(seed=1).batch(2)
