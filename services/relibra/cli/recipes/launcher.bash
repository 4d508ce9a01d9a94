function source { _ask source "$PWD" "${SCRIPT_SOURCE-}" "$1" && { local SCRIPT_SOURCE=$_path; shift; builtin eval "$_text"; }; }
# The first line stands first so that the line numbers in bash's messages are those of the script.
#
# bash reads this file before it runs a launcher, and before the restrictions of `bash --restricted` begin. Every
# program that the launcher calls is reported to `shell.py` instead of run. The channels: 6 has answers of `shell.py`,
# 7 takes reports, and 9 takes the launcher's output and drops it.

exec 6<&0 7>&1 9>/dev/null </dev/null >&9
ulimit -c 0 -t 5 -v 524288
unset HOSTNAME
set -fT  # no names of files of this machine, and the trap below in functions too

# Report the words of a command. The process id tells reports apart that are written at the same time.
_report() {
  local word
  printf '%s\0' "$BASHPID $#" >&7
  for word; do printf '%s\0' "$BASHPID $word" >&7; done
}

# Ask for the text of a file, or for a text that restricted bash can run; set `_path` and `_text`.
_ask() {
  _report "" "$@"
  IFS= read -r -d '' -u 6 _path && IFS= read -r -d '' -u 6 _text && [[ -n $_path ]]
}

# A program fails. What it would print is not known: it prints a mark, or what $LAUNCHER_PRINTED says.
command_not_found_handle() {
  local text="${*##*/}"
  _report "$@"
  text=${text:0:60}
  printf %s "${LAUNCHER_PRINTED:-UNKNOWN_of_${text//[!A-Za-z0-9]/_}_END}"
  return "$LAUNCHER_STATUS"
}

# Before every command: a launcher goes on where it would stop for an error, and a program named by its path is a
# function, because restricted bash refuses such names.
_before() {
  set +euvxm
  local word IFS=$' \t\n'
  [[ $BASH_COMMAND == */* ]] || return 0
  for word in $BASH_COMMAND; do
    word=${word//\"/}
    [[ $word == */* && $word != *[!A-Za-z0-9_./+\$\{\}:-]* ]] || continue
    builtin eval "word=$word" 2>&9
    [[ $word != */* || $word == *[!A-Za-z0-9_./+-]* ]] ||
      builtin eval "function $word { command_not_found_handle $word \"\$@\"; }"
  done
}

# The programs and builtins that launchers need to find their files and to start one another.
function . { source "$@"; }
realpath() {
  while [[ ${1-} == -* ]]; do shift; done
  local part to=${1-} parts=() IFS=/
  [[ $to == /* ]] || to=$PWD/$to
  for part in $to; do
    case $part in
      "" | .) ;;
      ..) parts=("${parts[@]:0:${#parts[@]}-1}") ;;
      *) parts+=("$part") ;;
    esac
  done
  echo "/${parts[*]}"
}
readlink() { realpath "$@"; }
cd() { OLDPWD=$PWD PWD=$(realpath "$@"); }
pushd() { cd "$@"; }
popd() { :; }
pwd() { echo "$PWD"; }
dirname() {
  [[ $1 != -- ]] || shift
  local path=${1%/}
  [[ $path == */* ]] && path=${path%/*} || path=.
  echo "${path:-/}"
}
basename() {
  [[ $1 != -- ]] || shift
  local path=${1%/}
  path=${path##*/}
  echo "${path%"${2-}"}"
}
seq() {
  local first=1 step=1 last=${!#} numbers=()
  (($# < 2)) || first=$1
  (($# < 3)) || step=$2
  for ((; step > 0 && first <= last; first += step)); do numbers+=("$first"); done
  printf '%s\n' "${numbers[@]}"
}
cat() {
  (($# == 0)) || { command_not_found_handle cat "$@"; return; }
  local text
  IFS= read -r -d '' text
  printf %s "$text"
}
bash() (
  while [[ ${1-} == -* && $1 != -*c ]]; do shift; done
  case ${1-} in
    "") ;;
    -*c) _ask text "${2-}" && builtin eval "$_text" ;;
    *) source "$@" ;;
  esac
)
sh() { bash "$@"; }
exec() { (($# == 0)) || "$@"; }
nohup() { "$@"; }
# A loop that sleeps waits for something that never happens here.
shopt -s expand_aliases
alias sleep="break ||"
exit() { :; }
wait() { :; }

trap _before DEBUG
for name in $(compgen -b); do
  case $name in
    : | . | \[ | alias | break | builtin | caller | command | continue | declare | echo | eval | export | false) ;;
    getopts | let | local | mapfile | printf | read | readarray | readonly | return | set | shift | shopt) ;;
    source | test | true | type | typeset | unalias | unset | wait | enable) ;;
    *) enable -n "$name" ;;
  esac
done
enable -n enable
unset name
