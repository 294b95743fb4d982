#!/usr/bin/env bash
# Start OpenCode and the service here, until Ctrl-C: scripts/start_services.sh [DIRECTORY] [--port 8000]
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
opencode_a2a up "$@"
