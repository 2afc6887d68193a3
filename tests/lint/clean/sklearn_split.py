import dp_accounting
from sklearn.model_selection import KFold, ShuffleSplit, train_test_split

event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
x_train, x_test = train_test_split(x, shuffle=True, random_state=0)
for fold, held_out in KFold(5, shuffle=True).split(x):
    classifier.fit(x[fold], y[fold])
