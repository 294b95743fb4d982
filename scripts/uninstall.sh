#!/usr/bin/env bash
# Remove an instance, or everything: sudo scripts/uninstall.sh [project=NAME] [--purge] [--dry-run] [--yes]
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse "$@"
if [[ -n "$project" ]]; then
  installed_deploy deploy remove ${options[@]+"${options[@]}"} "$project"
else
  checkout_deploy deploy uninstall ${options[@]+"${options[@]}"}
fi
