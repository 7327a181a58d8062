#!/bin/sh
# Write releases/MINOR.mod and .sum for one published Kubernetes release: ./pin.sh v1.36.3
#
# Kubernetes replaces its staging modules by local folders; a dependent has to name the published
# module of the same release for each of them (v1.36.3 -> v0.36.3).
set -eu
cd "$(dirname "$0")"
version=$1
minor=${version#v}; minor=${minor%.*}
staging="v0.${version#v1.}"
file="releases/$minor.mod"

source_mod=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
{
  echo "module controlplane"
  echo
  sed -n 's/^go /go /p' "$source_mod"
  echo
  echo "require k8s.io/kubernetes $version"
  echo
  echo "replace ("
  sed -n 's|^[[:space:]]*\(k8s.io/[^ ]*\) => ./staging/.*|\1|p' "$source_mod" | sort -u |
    while read -r module; do printf '\t%s => %s %s\n' "$module" "$module" "$staging"; done
  echo ")"
} > "$file"
go mod tidy -modfile="$file"
