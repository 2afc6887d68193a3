"""List the bibliography: every result cites what it used by these keys."""

from types import MappingProxyType

BIBLIOGRAPHY = MappingProxyType(
    {
        "balle2018": "Balle, Wang: Improving the Gaussian Mechanism for Differential Privacy: "
        "Analytical Calibration and Optimal Denoising. ICML 2018.",
        "annamalai2025": "Annamalai, Balle, Hayes, De Cristofaro: To Shuffle or not to Shuffle: "
        "Auditing DP-SGD with Shuffling. 2025.",
        "carlini2022": "Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks "
        "From First Principles. IEEE S&P 2022.",
        "carlini2019": "Carlini, Liu, Erlingsson, Kos, Song: The Secret Sharer: Evaluating and "
        "Testing Unintended Memorization in Neural Networks. USENIX Security 2019.",
        "chua2024": "Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha, Zhang: How Private are DP-SGD "
        "Implementations? ICML 2024; Scalable DP-SGD: Shuffling vs. Poisson Subsampling. "
        "NeurIPS 2024.",
        "chua2025": "Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang: "
        "Balls-and-Bins Sampling for DP-SGD. AISTATS 2025.",
        "feldman2021": "Feldman, McMillan, Talwar: Hiding Among the Clones: A Simple and Nearly "
        "Optimal Analysis of Privacy Amplification by Shuffling. FOCS 2021.",
        "feldman2025": "Feldman, Shenfeld: Privacy Amplification by Random Allocation. 2025.",
        "andrew2024": "Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar: One-shot Empirical "
        "Privacy Estimation for Federated Learning. ICLR 2024.",
        "clopper1934": "Clopper, Pearson: The Use of Confidence or Fiducial Limits Illustrated in "
        "the Case of the Binomial. Biometrika 26, 1934.",
        "dong2022": "Dong, Roth, Su: Gaussian Differential Privacy. JRSS B 84, 2022.",
        "doroshenko2022": "Doroshenko, Ghazi, Kamath, Kumar, Manurangsi: Connect the Dots: Tighter "
        "Discrete Approximations of Privacy Loss Distributions. PETS 2022.",
        "feldman2020": "Feldman, Zhang: What Neural Networks Memorize and Why: Discovering the "
        "Long Tail via Influence Estimation. NeurIPS 2020.",
        "gal2016": "Gal, Ghahramani: Dropout as a Bayesian Approximation: Representing Model "
        "Uncertainty in Deep Learning. ICML 2016.",
        "jagielski2020": "Jagielski, Ullman, Oprea: Auditing Differentially Private Machine "
        "Learning: How Private is Private SGD? NeurIPS 2020.",
        "kairouz2015": "Kairouz, Oh, Viswanath: The Composition Theorem for Differential Privacy. "
        "ICML 2015.",
        "koh2017": "Koh, Liang: Understanding Black-box Predictions via Influence Functions. ICML "
        "2017.",
        "long2017": "Long, Bindschaedler, Gunter: Towards Measuring Membership Privacy. 2017.",
        "maddock2023": "Maddock, Sablayrolles, Stock: CANIFE: Crafting Canaries for Empirical "
        "Privacy Measurement in Federated Learning. ICLR 2023.",
        "mahloujifar2024": "Mahloujifar, Melis, Chaudhuri: Auditing f-Differential Privacy in One "
        "Run. 2024.",
        "mann1947": "Mann, Whitney: On a Test of Whether one of Two Random Variables is "
        "Stochastically Larger than the Other. Annals of Mathematical Statistics 18, 1947.",
        "nasr2023": "Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski, Carlini, Terzis: Tight "
        "Auditing of Differentially Private Machine Learning. USENIX Security 2023.",
        "panda2025": "Panda, Tang, Nasr, Choquette-Choo, Mittal: Privacy Auditing of Large "
        "Language Models. ICLR 2025.",
        "paulson1942": "Paulson: An Approximate Normalization of the Analysis of Variance "
        "Distribution. Annals of Mathematical Statistics 13, 1942.",
        "shi2024": "Shi, Ajith, Xia, Huang, Liu, Blevins, Chen, Zettlemoyer: Detecting Pretraining "
        "Data from Large Language Models. ICLR 2024.",
        "shibahara2021": "Shibahara, Miura, Kii, Ichikawa: Privacy Risk of Differentially Private "
        "Bayesian Neural Network (in Japanese). 2021.",
        "shokri2017": "Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against "
        "Machine Learning Models. IEEE S&P 2017.",
        "steinke2023": "Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. "
        "NeurIPS 2023.",
        "turner2024": "Turner, Ly, Grünwald: Generic E-Variables for Exact Sequential k-Sample "
        "Tests that Allow for Optional Stopping. J. Statistical Planning and Inference 230, 2024.",
        "ville1939": "Ville: Étude critique de la notion de collectif. Gauthier-Villars, 1939.",
        "wang2019": "Wang: Per-instance Differential Privacy. J. Privacy and Confidentiality "
        "9(1), 2019.",
        "waudbysmith2024": "Waudby-Smith, Ramdas: Estimating Means of Bounded Random Variables by "
        "Betting. JRSS B 86, 2024.",
        "wilks1941": "Wilks: Determination of Sample Sizes for Setting Tolerance Limits. Annals of "
        "Mathematical Statistics 12, 1941.",
        "yeom2018": "Yeom, Giacomelli, Fredrikson, Jha: Privacy Risk in Machine Learning: "
        "Analyzing the Connection to Overfitting. CSF 2018.",
        "zanella2023": "Zanella-Béguelin, Wutschitz, Tople, Salem, Rühle, Paverd, Naseri, Köpf, "
        "Jones: Bayesian Estimation of Differential Privacy. ICML 2023.",
        "zarifzadeh2024": "Zarifzadeh, Liu, Shokri: Low-Cost High-Power Membership Inference "
        "Attacks. ICML 2024.",
        "zhu2024": "Zhu, Guo, Feng, Simeone: On the Impact of Uncertainty and Calibration on "
        "Likelihood-Ratio Membership Inference Attacks. arXiv 2402.10686, 2024.",
    }
)
