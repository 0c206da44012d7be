"""The sections of an experiment's settings, each a frozen value that is validated when it is made.

`[federation]` is in `federation.py`. Every field has the paper's setting as its default where the paper states one;
`docs/configuration.md` lists them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedrbn.builtin import alternatives
from fedrbn.builtin.aggregation import RULES
from fedrbn.builtin.attacks import ON_LOSS
from fedrbn.builtin.data_sets import AVAILABLE
from fedrbn.builtin.methods import METHODS
from fedrbn.builtin.networks import NETWORKS
from fedrbn.config.section import Pixels, Section, Share


class DataConfig(Section):
    """Which images: an embedded or prepared data set, an image folder, or `package.module:object`."""

    name: str = Field("digits-mini", description=f"{alternatives(AVAILABLE, 'a folder root/<domain>/<class>/*')}.")
    domains: tuple[str, ...] | None = None
    """The domains to use, in this order; all if not set."""
    image_size: int | None = Field(default=None, ge=8, le=1024)
    """Side of the square images in pixels; if not set, the data set's own (28 for digits, 256 for photographs)."""


class ModelConfig(Section):
    """Which network."""

    name: str = Field("digits", description=f"{alternatives(NETWORKS)}.")
    width: float = Field(default=1.0, gt=0, le=4)
    """Scales every layer's channels; 1 is the paper's network."""
    momentum: float | None = Field(default=None, gt=0, le=1)
    """How far batch norm's running statistics move towards those of a batch; if not set, the network's, usually 0.1."""


class TrainConfig(Section):
    """Local training and the rounds."""

    rounds: int = Field(default=300, ge=1)
    """Communication rounds."""
    local_epochs: int = Field(default=1, ge=1)
    """Passes over a user's data per round."""
    batch_size: int = Field(default=32, ge=2)
    """Images per step; a last batch of one image is merged into the batch before it."""
    lr: float = Field(default=1e-2, gt=0)
    """Learning rate of SGD."""
    schedule: Literal["constant", "cosine"] = "constant"
    """The learning rate over rounds: constant, or a cosine from `lr` towards 0."""
    validate_every: int = Field(default=1, ge=1)
    """Rounds between two validations; the last round is always validated."""
    aggregation: str = Field("mean", description=f"How uploads become the next weights: {alternatives(RULES)}.")
    at_weight: float | None = Field(default=None, gt=0)
    """mean: factor on the weight of AT users' samples, 2 makes their uploads count twice; default: 1."""
    slack: float | None = Field(default=None, ge=0, lt=1)
    """α of SFAT: AT users with the smallest losses weigh 1 + α, the others 1 − α; default: 1/6, as released."""
    slack_share: float | None = Field(default=None, gt=0, lt=1)
    """slack: the share of the AT users that weighs more, at least one of several; default: 0.2, as released. The
    release starts with the second round and leaves out batch norm; ours weighs every round and all that is shared."""
    malicious: float | None = Field(default=None, ge=0)
    """Malicious clients that trimmed-mean, krum and multi-krum withstand: a number, or a share below 1; 0.2 unless
    given."""
    keep: int | None = Field(default=None, ge=1)
    """Uploads that multi-krum averages; default: all but the malicious ones."""
    bound: float | None = Field(default=None, gt=0)
    """norm-bound: largest norm of a client's update; default: the median norm of the round."""


class AttackConfig(Section):
    """The adversary in training, validation and test: L∞, in pixels."""

    name: str = Field("pgd", description=f"{alternatives(ON_LOSS)}.")
    eps: Pixels = 8 / 255
    """Largest change of a pixel; "8/255" is accepted."""
    steps: int = Field(default=7, ge=1)
    """Gradient steps."""
    step_size: Pixels = 2 / 255
    """Length of a step."""
    threat: Literal["pixel", "authors-release"] = "pixel"
    """pixel: ε in pixels, images in [0, 1]. authors-release: computes as the released code, for comparison only."""


class MethodConfig(Section):
    """The federated method and its options; those that are not set have the method's own default."""

    name: str = Field("fedrbn", description=f"{alternatives(METHODS)}.")
    lam: float | None = Field(default=None, ge=0, le=1)
    """λ of Eq. 5, the weight of the calibration loss of ST users."""
    weighting: Literal["cosine", "uniform"] | None = None
    """How donors of BN_a are weighted (Eq. 4)."""
    temperature: float | None = Field(default=None, gt=0)
    """T of the softmax in Eq. 4."""
    donor_cap: Share | None = None
    """Largest weight of one donor in Eq. 3; the excess goes to the other donors in proportion to their weights."""
    donor_mean: Literal["mean", "median", "trimmed"] | None = None
    """How donors' statistics combine: the mean of Eq. 3, the weighted median, or a mean trimmed by 1/4 at each end."""
    donor_range: float | None = Field(default=None, ge=1)
    """Reject donors whose statistics deviate more than this many times the median deviation; if not set, none."""
    affine: Literal["shared", "separate"] | None = None
    """One trainable pair w, b for both branches, or one pair for each."""
    local: Literal["nothing", "bn-stats", "bn", "everything"] | None = None
    """What is kept per client and never averaged."""
    warmup: int | None = Field(default=None, ge=0)
    """Rounds at the start in which λ is 0."""
    clip: Annotated[float, Field(gt=0)] | Literal["off"] | None = None
    """Largest norm of the calibration gradient (Algorithm 3), or "off"."""
    mu: float | None = Field(default=None, ge=0)
    """Weight of the proximal term (μ/2)‖w − w_t‖²."""
    momentum: float | None = Field(default=None, ge=0, lt=1)
    """Server momentum: this fraction of the last round's update of the shared weights is added to this round's."""
    predict: Literal["clean", "noised"] | None = None
    """The branch that predicts and is attacked: clean is BN_c, noised is BN_a."""
    select: Literal["clean", "noised"] | None = None
    """The branch whose accuracy on validation data chooses the best round, BN_c (clean) or BN_a (noised); unless given,
    the one that predicts."""
    at_loss: Literal["ce", "trades", "mart"] | None = None
    """What AT users minimise: the paper's mean of clean and attacked cross-entropy, TRADES, or MART."""
    beta: float | None = Field(default=None, ge=0)
    """Weight of the KL divergence in TRADES and MART; default: 6."""
    at_share: Share | None = None
    """Fractional AT: the probability that a batch of an AT user is adversarial; the others are standard training."""
    logits: Literal["plain", "calibrated"] | None = None
    """calibrated: training adds log π to the logits, for the loss and for the attack on it; π is the client's smoothed
    class prior (CalFAT). CalFAT's release differs in two ways. Its attack maximises the KL divergence of calibrated
    logits: for this attack, set method.at_loss = "trades", whose loss, however, is not CalFAT's calibrated
    cross-entropy. And it adds 0.1 · log of the class counts and multiplies the sum by 10; ours adds log π, as in its
    paper."""
    inner_lr: float | None = Field(default=None, gt=0)
    """fatmeta: learning rate of the adaptation step, in training and before evaluation."""
    meta_lr: float | None = Field(default=None, gt=0)
    """fatmeta: learning rate of the meta step, instead of train.lr."""
    replays: int | None = Field(default=None, ge=1)
    """Free AT: replays of each batch of an AT user; train.rounds is divided by it. Default: 4."""
    affine_lr: float | None = Field(default=None, gt=0)
    """fedrob: step size of the affine map Λx + δ; default: 0.00167."""
    gamma: float | None = Field(default=None, ge=0)
    """fedrob: γ, how strongly the affine map is pulled towards the identity; default: 300."""
    affine_steps: int | None = Field(default=None, ge=1)
    """fedrob: steps of the affine map on each batch, before the step of the weights; default: 7."""
    ft_iterations: int | None = Field(default=None, ge=1)
    """finetune: steps of each ST user after the AT users have trained."""
    freeze: int | None = Field(default=None, ge=0)
    """finetune: number of first layers that ST users freeze, together with the batch norm that follows them."""


class FaultsConfig(Section):
    """What happens when clients fail. If none does, nothing here changes the results."""

    min_clients: Annotated[int, Field(ge=1)] | Share = 0.5
    """Minimum number of valid answers per round: a number, or a share of the AT and of the ST users that were asked."""
    deadline_seconds: float | None = Field(default=None, gt=0)
    """Seconds after which a client that has not answered is dropped from the round; never if not set."""
    on_too_few: Literal["stop", "wait"] = "stop"
    """With too few answers: stop and keep the last round's state for --resume, or ask the missing clients again."""
    wait_seconds: float = Field(default=30.0, gt=0)
    """Seconds to wait before they are asked again."""
    max_update: float = Field(default=10.0, gt=0)
    """Reject an update whose norm is more than this many times the norm of the weights it started from."""
    stale_half_life: float = Field(default=10.0, gt=0)
    """Consecutive missed answers after which an AT user's weight as a donor of BN_a (Eq. 4) is halved."""


class PrivacyConfig(Section):
    """Differential privacy of what clients send, per client; without noise there is none. See docs/security.md."""

    statistics_noise: float | None = Field(default=None, gt=0)
    """Noise multiplier of BN statistics: the standard deviation over the sensitivity, which is twice the clip."""
    statistics_clip: float | None = Field(default=None, gt=0)
    """Norm to which a change of statistics is clipped, in units of the channels' own spread; default: 1."""
    statistics_when: Literal["upload", "step"] | None = None
    """When they get noise. upload: once, before the upload. step: also after every local step."""
    update_noise: float | None = Field(default=None, gt=0)
    """Noise multiplier of the update of the weights."""
    update_clip: float | None = Field(default=None, gt=0)
    """Norm to which an update is clipped; default: 1."""
    update_at: Literal["client", "server"] | None = None
    """Where updates get noise. client: the server need not be trusted. server: only the mean, with far less noise."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """δ for which the ε spent is computed; default: 1e-5."""
    secret: bool | None = None
    """Take noise from the operating system, for deployments: anyone can recompute the noise of a seeded run."""


class MaliceConfig(Section):
    """Simulated attackers among the clients, for experiments only: a deployment has none of this."""

    attack: Literal["sign-flip", "noise", "label-flip", "bn-variance", "bn-shift", "bn-swap"] | None = None
    """What they do: to their update, to their labels, or to the BN_a that they donate."""
    share: Share | None = None
    """Their share of the clients (of the AT users for the bn- attacks); default: 0.2."""
    strength: float | None = Field(default=None, gt=0)
    """Strength s of the attack; default: 5 for updates, 10⁴ for the variance, 10 for the shift."""


class RunConfig(Section):
    """How and where it runs; except for the seed, nothing here changes the results beyond float rounding."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of all randomness."""
    workers: int | None = Field(default=None, ge=1)
    """Processes that train clients, one thread each; one per core if not set; 1 trains in this process."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    """Where networks run; an accelerator is used from one process."""
    fast: bool = True
    """Use faster kernels on the CPU (see `nets.fast`): the same results up to float rounding."""
    precision: Literal["auto", "bfloat16"] | None = None
    """bfloat16: convolutions and matrix products of training with about half the bits; refused on a processor without
    working instructions for it. auto: bfloat16 where a short trial on the processor is at least 1.2 times as fast,
    else float32; records say which, and a run that is continued keeps it. None is float32. Evaluation is in float32
    always."""
    out: str | None = None
    """The run directory; if not set, a new one under `runs/`."""
