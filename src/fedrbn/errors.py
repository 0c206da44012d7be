"""Every error that a user can cause, in one tree; everything else is a bug and shows a traceback.

    FedRBNError
    ├── ConfigError              a setting, an option, or the name of an object of one's own
    ├── HardwareError            a device or precision that this machine does not have
    ├── DataError                images, labels, or files of a data set
    ├── NetworkError             a network that cannot be used
    ├── AttackError              an attack that cannot be made or called
    ├── StorageError             a run directory or a file in it
    │   └── DamagedError         a checkpoint whose content is not what was written
    ├── FederationError          clients that cannot be run, or too few of them
    │   └── TooFewClientsError
    ├── UploadError              what a client sent is refused
    ├── MessageError             a Flower message that cannot be used
    ├── EvaluationError          an evaluation that cannot be made, compared or trusted
    ├── FleetError               devices, and what they can do
    ├── ModelFileError           an exported network
    ├── OnboardingError          a new client without what it takes
    ├── DeployError              a site of a deployment
    ├── FigureError              a figure without what it shows
    └── TrackingError            TensorBoard

Each says what it got, what it expected, and what to do. Where Python has a class for the kind of mistake, the error is
one of those too, so that `except ValueError` works as well.
"""

from __future__ import annotations


class FedRBNError(Exception):
    """An error that a user can cause and fix."""


class ConfigError(FedRBNError, ValueError):
    """A setting that cannot be used; the message says which, what was expected, and the nearest right name."""


class HardwareError(FedRBNError, ValueError):
    """A device or precision that this machine does not have."""


class DataError(FedRBNError, ValueError):
    """Images, labels or files of a data set that cannot be used."""


class NetworkError(FedRBNError, ValueError, RuntimeError):
    """A network that cannot be built, converted or called as asked."""


class AttackError(FedRBNError, ValueError, TypeError):
    """An attack that cannot be made from its settings, or that does not behave as one."""


class StorageError(FedRBNError, RuntimeError):
    """A run directory or checkpoint that cannot be used; the message says what was found and what helps."""


class FederationError(FedRBNError, RuntimeError):
    """Clients that cannot be run or evaluated."""


class UploadError(FedRBNError, ValueError):
    """An upload that must not reach the mean, with the client, the layer and the reason."""


class MessageError(FedRBNError, ValueError):
    """A message that is not what both sides have agreed on."""


class EvaluationError(FedRBNError, ValueError):
    """An evaluation that cannot be made, compared or trusted."""


class FleetError(FedRBNError, ValueError):
    """Devices or their measurements that cannot be used."""


class ModelFileError(FedRBNError, RuntimeError, ValueError):
    """An exported network that cannot be written, read or used."""


class OnboardingError(FedRBNError, ValueError):
    """A new client without what its model needs."""


class DeployError(FedRBNError, RuntimeError, ValueError):
    """A site of a deployment that cannot be made or started."""


class FigureError(FedRBNError, ValueError):
    """A figure without the results or networks that it shows."""


class TrackingError(FedRBNError, ValueError):
    """A tracker that cannot be used."""
