#!/usr/bin/env bash
# Prepare this machine for many instances under systemd: sudo scripts/init_system.sh [--dry-run] [--yes]
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
checkout_deploy deploy init --from "$root" "$@"
