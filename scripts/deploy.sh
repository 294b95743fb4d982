#!/usr/bin/env bash
# Make or change an instance: sudo scripts/deploy.sh project=alpha [a2a_port=8010] [--dry-run] [--yes]
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse "$@"
if [[ -z "$project" ]]; then
  echo "usage: $0 project=NAME [a2a_host=…] [a2a_port=…] [a2a_public_url=…] [workspace=…] [--yes]" >&2
  exit 2
fi
command=create
if installed_deploy deploy list | grep -q "^$project "; then command=update; fi
installed_deploy deploy "$command" ${options[@]+"${options[@]}"} "$project"
