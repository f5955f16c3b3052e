#!/usr/bin/env bash
# Writes the tables of docs/ anew: between a marker that names a command and the next end marker stands what it prints.
# A marker with a $ names a line for the shell, which is shown with what it prints as text. With arguments, only these
# documents.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
[ $# -gt 0 ] || set -- docs/*.md
for document; do
  inside=
  while IFS= read -r line; do
    case $line in
      '<!-- build/weft '*' -->')
        # The words of the marker are those of the command.
        words=${line#<!-- }
        read -ra words <<<"${words% -->}"
        printf '%s\n\n' "$line"
        "${words[@]}" </dev/null
        inside=yes
        ;;
      '<!-- $ '*' -->')
        command=${line#<!-- $ }
        command=${command% -->}
        printf '%s\n\n```text\n$ %s\n' "$line" "$command"
        bash -c "$command" </dev/null
        printf '```\n'
        inside=yes
        ;;
      '<!-- end -->')
        printf '\n%s\n' "$line"
        inside=
        ;;
      *) if [ -z "$inside" ]; then printf '%s\n' "$line"; fi ;;
    esac
  done <"$document" >"$fresh"
  if [ -n "$inside" ]; then
    echo "$document: a table has no end marker" >&2
    exit 1
  fi
  if ! cmp -s "$fresh" "$document"; then
    cat "$fresh" >"$document"
    echo "$document has new tables"
  fi
done
