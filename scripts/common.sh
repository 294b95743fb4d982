# shellcheck shell=bash
# How the scripts call `opencode-a2a`: the installed one, else the one of this checkout.
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

opencode_a2a() {
  if [[ -x "$root/.venv/bin/opencode-a2a" ]]; then
    "$root/.venv/bin/opencode-a2a" "$@"
  elif command -v opencode-a2a >/dev/null; then
    opencode-a2a "$@"
  else
    checkout_deploy "$@"
  fi
}

# `deploy` for many instances needs no packages: any Python from 3.11 on runs it.
checkout_deploy() {
  PYTHONPATH="$root/src" "${PYTHON:-python3}" -P -m opencode_a2a "$@"
}

# The program that `deploy init` has installed knows its own units.
installed_deploy() {
  if [[ -x /opt/opencode-a2a/current/bin/opencode-a2a ]]; then
    /opt/opencode-a2a/current/bin/opencode-a2a "$@"
  else
    checkout_deploy "$@"
  fi
}

# Takes NAME=VALUE arguments apart: sets `project`, and `options` to what `deploy` calls them.
# shellcheck disable=SC2034 # the scripts that call it use them
parse() {
  project="" options=()
  local argument
  for argument in "$@"; do
    case "$argument" in
      project=*) project="${argument#*=}" ;;
      a2a_host=*) options+=(--host "${argument#*=}") ;;
      a2a_port=*) options+=(--port "${argument#*=}") ;;
      a2a_public_url=*) options+=(--public-url "${argument#*=}") ;;
      opencode_port=*) options+=(--opencode-port "${argument#*=}") ;;
      workspace=*) options+=(--workspace "${argument#*=}") ;;
      memory=*) options+=(--memory "${argument#*=}") ;;
      tasks=*) options+=(--tasks "${argument#*=}") ;;
      secret=*) options+=(--secret "${argument#*=}") ;;
      -*) options+=("$argument") ;;
      *)
        echo "$0: '$argument' is not known; see $root/scripts/README.md" >&2
        exit 2
        ;;
    esac
  done
}
