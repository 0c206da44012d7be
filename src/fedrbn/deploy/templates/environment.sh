# Settings for every Flower process of this folder; the other scripts read this file from within the folder.
# Set FEDRBN_BIN to the bin directory of the environment that fedrbn is installed in, unless it is already on PATH.
PATH="${FEDRBN_BIN:+$FEDRBN_BIN:}$PATH"
FLWR_HOME="$PWD/flwr"
FLWR_TELEMETRY_ENABLED=0
FLWR_DISABLE_UPDATE_CHECK=1
RAY_USAGE_STATS_ENABLED=0
# without this, Flower would install the app's requirements
FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
# seconds between two polls for work; Flower's default is 1
FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}"
FEDRBN_STATE="$PWD/state"
export PATH FLWR_HOME FLWR_TELEMETRY_ENABLED FLWR_DISABLE_UPDATE_CHECK RAY_USAGE_STATS_ENABLED \
  FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION FLWR_SUPEREXEC_TASK_POLL_INTERVAL FEDRBN_STATE

if ! command -v flower-superexec >/dev/null; then
  echo "got no flower-superexec on PATH; expected fedrbn[flower] to be installed. Set FEDRBN_BIN to its bin directory." >&2
  exit 127
fi
umask 077
mkdir -p flwr state
