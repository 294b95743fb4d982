#!/usr/bin/env bash
# Run in the background, without root: scripts/deploy_light.sh start|stop|restart|status|logs NAME …
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
opencode_a2a deploy light "$@"
