"""The data sets that `fedrbn data prepare` accepts: what to download and who owns it, by searchable names."""

from __future__ import annotations

from dataclasses import dataclass

OFFICE_DOMAINS = ("amazon", "caltech", "dslr", "webcam")
OFFICE_CLASSES = 10
DOMAINNET_DOMAINS = ("real", "clipart", "infograph", "painting", "quickdraw", "sketch")
"""In the paper's order, which decides the first domains that train adversarially."""
DOMAINNET_CLASSES = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip
"""The ten of DomainNet's 345 classes that FedBN and the paper use."""


@dataclass(frozen=True)
class Official:
    """A data set as its owners publish it."""

    title: str
    owners: str
    files: tuple[str, ...]
    """What the source folder must contain."""
    where: str
    folder: str
    """Where its prepared files go, below FEDRBN_DATA."""


OFFICIAL = {
    "mnist": Official(
        "MNIST",
        "Y. LeCun, C. Cortes, C. J. C. Burges",
        tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")),
        "The MNIST database of handwritten digits; many mirrors hold the same four files.",
        "digits",
    ),
    "svhn": Official(
        "SVHN, cropped digits (format 2)",
        "Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng; non-commercial use only",
        ("train_32x32.mat", "test_32x32.mat"),
        "The Street View House Numbers dataset, at Stanford University.",
        "digits",
    ),
    "usps": Official(
        "USPS",
        "J. J. Hull; the 7,291 + 2,007 form is used here",
        ("usps.bz2", "usps.t.bz2", "or usps.h5 (needs the package h5py)"),
        "The multi-class page of LIBSVM Data, by C.-C. Chang and C.-J. Lin, National Taiwan University.",
        "digits",
    ),
    "mnist_m": Official(
        "MNIST-M",
        "Y. Ganin, V. Lempitsky",
        ("mnist_m_train/*.png", "mnist_m_train_labels.txt", "mnist_m_test/*.png", "mnist_m_test_labels.txt"),
        "The archive mnist_m.tar.gz that the authors of Domain-Adversarial Training of Neural Networks published; "
        "unpack it.",
        "digits",
    ),
    "office-caltech10": Official(
        "Office-Caltech10",
        "K. Saenko et al. (Office-31), G. Griffin et al. (Caltech-256), B. Gong et al. (the ten classes)",
        tuple(f"{domain}/<class>/*.jpg" for domain in ("amazon", "caltech10 or caltech", "dslr", "webcam")),
        "The ten classes shared by Office-31 and Caltech-256, as images; any copy with 958, 1123, 157 and 295 files.",
        "office_caltech10",
    ),
    "domainnet": Official(
        "DomainNet; of its 345 classes ten are kept",
        "X. Peng, Q. Bai, X. Xia, Z. Huang, K. Saenko, B. Wang",
        tuple(f"{domain}.zip, {domain}_train.txt, {domain}_test.txt" for domain in DOMAINNET_DOMAINS),
        "DomainNet of Moment Matching for Multi-Source Domain Adaptation, Boston University: the cleaned version. One "
        "domain at a time is enough. The lists are optional: without them each class is split 80/20.",
        "domainnet",
    ),
}
"""The values of `--as`."""
