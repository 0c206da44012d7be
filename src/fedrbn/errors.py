"""Every error that a user can cause, in one tree; everything else is a bug and shows a traceback.

    FedRBNError
    ├── ConfigError              a setting, an option, or the name of your own object
    ├── HardwareError            a device or precision that this machine does not have
    ├── DataError                images, labels, or files of a data set
    ├── NetworkError             a network that cannot be used
    ├── AttackError              an attack that cannot be created or called
    ├── StorageError             a run directory or a file in it
    │   └── DamagedError         a checkpoint whose content has changed since it was written
    ├── FederationError          clients that cannot run, or too few of them
    │   └── TooFewClientsError
    ├── UploadError              an upload of a client that is rejected
    ├── MessageError             a Flower message that cannot be used
    ├── EvaluationError          an evaluation that cannot be done, compared or trusted
    ├── FleetError               devices or their measurements
    ├── ModelFileError           an exported network
    ├── OnboardingError          a new client that lacks something its model needs
    ├── DeployError              a site of a deployment
    ├── FigureError              a figure whose results or networks are missing
    └── TrackingError            TensorBoard

Each says what it got, what it expected, and what to do. Where Python has a built-in class for the kind of mistake, the
error is a subclass of it too, so `except ValueError` works as well.
"""

from __future__ import annotations


class FedRBNError(Exception):
    """An error that a user can cause and fix."""


class ConfigError(FedRBNError, ValueError):
    """A setting that cannot be used; the message names it, says what was expected and suggests the closest name."""


class HardwareError(FedRBNError, ValueError):
    """A device or precision that this machine does not have."""


class DataError(FedRBNError, ValueError):
    """Images, labels or files of a data set that cannot be used."""


class NetworkError(FedRBNError, ValueError, RuntimeError):
    """A network that cannot be built, converted or called."""


class AttackError(FedRBNError, ValueError, TypeError):
    """An attack that cannot be created from its settings, or that does not behave like an attack."""


class StorageError(FedRBNError, RuntimeError):
    """A run directory or checkpoint that cannot be used; the message says what was found and how to fix it."""


class FederationError(FedRBNError, RuntimeError):
    """Clients that cannot run or cannot be evaluated."""


class UploadError(FedRBNError, ValueError):
    """An upload that must not be aggregated; the message names the client, the layer and the reason."""


class MessageError(FedRBNError, ValueError):
    """A message that does not follow the protocol."""


class EvaluationError(FedRBNError, ValueError):
    """An evaluation that cannot be done, compared or trusted."""


class FleetError(FedRBNError, ValueError):
    """Devices or their measurements that cannot be used."""


class ModelFileError(FedRBNError, RuntimeError, ValueError):
    """An exported network that cannot be written, read or used."""


class OnboardingError(FedRBNError, ValueError):
    """A new client that lacks something its model needs."""


class DeployError(FedRBNError, RuntimeError, ValueError):
    """A site of a deployment that cannot be created or started."""


class FigureError(FedRBNError, ValueError):
    """A figure whose results or networks are missing."""


class TrackingError(FedRBNError, ValueError):
    """A tracker that cannot be used."""
