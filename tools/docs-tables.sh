#!/usr/bin/env bash
# Writes the tables of docs/ anew: between a marker that names a command and the next end marker stands what it prints.
# A marker with a $ names a line for the shell, which is shown with what it prints as text. With arguments, only these
# documents.
#
# What a marker with "measured $" names took its time on some machine and day and prints other numbers whenever it runs.
# Such text is left alone, unless --measured comes first: then it is written anew, with the day and the cores.
set -euo pipefail
if [[ ${1:-} == -* && $1 != --measured ]]; then
  echo "usage: tools/docs-tables.sh [--measured] [DOCUMENT...]" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
measured=
if [ "${1:-}" = --measured ]; then
  measured=yes
  shift
fi
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
      '<!-- measured $ '*' -->' | '<!-- $ '*' -->')
        if [[ $line == '<!-- measured '* && -z $measured ]]; then
          printf '%s\n' "$line"
          inside=kept
          continue
        fi
        command=${line#*$ }
        command=${command% -->}
        printf '%s\n\n' "$line"
        [[ $line != '<!-- measured '* ]] || printf 'Measured on %s, on %s cores:\n\n' "$(date +%F)" "$(nproc)"
        printf '```text\n$ %s\n' "$command"
        bash -c "$command" </dev/null
        printf '```\n'
        inside=yes
        ;;
      '<!-- end -->')
        [ "$inside" = kept ] || printf '\n'
        printf '%s\n' "$line"
        inside=
        ;;
      *) if [ "$inside" != yes ]; then printf '%s\n' "$line"; fi ;;
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
