"""Launchers run in restricted bash: they do what bash does, but no program runs and no file is written."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from harness.services import eventually
from relibra.cli.recipes.bounded import call_bounded
from relibra.cli.recipes.shell import run_script
from relibra.cli.recipes.unknown import is_known, show_unknown
from relibra.errors import InvalidInput

SNIPPETS = {
    "variables": (
        'A=1; B="$A two"; C=\'$A\'; record "$A" "$B" $B "$C" ${A}x "${D:-none}" "${D-}" "${A:+set}" "a\\$b" a\\ b'
    ),
    "arrays": 'X=(a "b c" $((1+2))); X+=(d); record "${X[@]}" ${X[1]} "${#X[@]}" "${X[*]}" "${X[-0]}"',
    "empty array": 'X=(); record a "${X[@]}" ${X[@]+"${X[@]}"} b',
    "array of an unset name": "record a ${NOTHING[@]} b",
    "keys": 'declare -A M=([a]=1 [b]="2 3"); M[c]=4; K=b; record "${M[$K]}" "${M[c]}" "${#M[@]}"',
    "arithmetic": (
        "A=7; record $((A*2-1)) $((A/2)) $((-A/2)) $((A%4)) $(((A+1)*2)) $((A==7&&A!=8)) ${B:-$(((A+1)*2))}"
    ),
    "counting": (
        "arr=(); for ((i=0; i<4; i++)); do if (( i < 1 )); then arr+=(0); else arr+=(1); fi; done; record ${arr[@]}"
    ),
    "printf": 'arr=(1 2); printf -v F "[%s]" "$(IFS=\', \'; echo "${arr[*]}")"; record "$F"',
    "if": 'A=5; if [ "$A" -gt 3 ] && [[ $A == 5* ]]; then R=y; elif false; then R=n; else R=m; fi; record $R',
    "tests": (
        '[[ -z "" && -n a && ! -z a && abc =~ b.$ && (a == b || a == a) ]] && record '
        "yes; [ a = a -a b != c ] && record y"
    ),
    "case": 'D=gpu; case "${D}" in cpu|npu) R=1 ;; g*) R=2 ;; *) R=3 ;; esac; record $R',
    "functions": 'f() { local x=$1; shift; echo "$x:$#:$*"; return 0; echo no; }; record "$(f a b c)" "$(f z)"',
    "loops": (
        "for w in a b c; do [ $w = b ] && continue; R+=$w; done; n=0; while [ $n -lt 3 "
        "]; do n=$((n+1)); done; record $R $n"
    ),
    "programs": (
        'record "$(dirname /a/b/c)" "$(basename /a/b/c.sh .sh)" "$(dirname c)" "$(dirname -- /a)" '
        '"$(realpath -m /a/../b/./c)" $(seq 3) $(seq 2 3 9) "$(cd / && pwd)"'
    ),
    "more expansions": (
        'P=/a/b.c; Q=P; record "${P##*/}" "${P%.*}" "${P/b/X}" "${P:3:2}" "${P^^}" "${!Q}" $(( P ? 1 : 2 )) $\'a\\tb\''
    ),
    "output goes anywhere": (
        'f() { echo "a > b"; } 2>/dev/null; A=$(f 2>&1 >/dev/null; f); { f; } &>/dev/null; [[ b > a ]] && (( 2 > 1 )) '
        '&& record "$A" > >(true) 2>>/dev/null; record "x" -> /dev/null'
    ),
    "here documents": 'read -r -d "" T <<EOF\nx $((1+1))\nEOF\nU=$(cat <<\'EOF\'\n$A y\nEOF\n)\nrecord "$T" "$U"',
    "here strings": 'L="--a 1 --b"; read -ra W <<< "$L"; record "${W[@]}" ${#W[@]}',
    "comments": "A=( a # not this\n  b\n  # nor this\n  c )\nrecord ${A[@]} \\\n  d # end",
    "defaults": ': "${A:=3}"; : ${B:="x y"}; record $A "$B" "${C:-$(echo z)}" "${C:-${A}}"',
    "tried": 'D=${D:-$(no_such_program_here 2>/dev/null && echo npu || echo gpu)}; record "$D"',
    "scope": "A=1; (A=2; B=3); B=${B:-none}; A=9 true; record $A $B",
    "quotes": 'record "a \'b\' \\"c\\"" \'d "e"\' "" \'\'',
    "redirections": "A=1; echo hidden >/dev/null 2>&1; { echo more; } &>/dev/null; record $A",
    "assignments before a command": (
        'f() { A+=("$X"); B=$X; }; X=1; X=2 f; X=3 eval \'A+=($X)\'; record "${A[@]}" $B $X'
    ),
    "read": (
        "IFS=',' read -ra A <<< '1,2 3,,4,'; read B C <<< ' x y  z '; IFS=: read -r D E F <<< '5::6:7'; "
        'record "${A[@]}" "$B" "$C" "$D" "$E" "$F"'
    ),
    "test and let": "let A=2+3 B=A*2; if test $A -gt 3; then R=y; fi; if ! let 0; then R+=z; fi; record $A $B $R",
    "return": "f() { return 1; }; if f; then R=y; else R=n; fi; f || R+=o; record $R",
    "local": (
        "A=1; f() { local A=$((A+1)) B=3 C; C=4; D=$A; declare E=5; export F=6; }; f; record $A ${B-} ${C-} $D ${E-} $F"
    ),
    "comments in lists": "true && # first\n  false || # then\n  record yes",
    "keys with a hyphen": 'declare -A M=([a-b]=1 ["c d"]=2); M[e-f]=3; record "${M[a-b]}" "${M[c d]}" "${M[e-f]}"',
    "end of a here document": "A=1; T=$(cat <<END_A\n$A\nEND_A\n); U=$(cat <<\\END_A\n$A\nEND_A\n); record $T $U",
    "negation": "if ! [ a = b ]; then record yes; fi; ! false && record also",
    "words before assignments": "A=1; A=9 record $A; A=8 B=$A eval 'record $A $B'; record $A",
    "leaving several loops": (
        "for a in 1 2; do for b in 1 2 3; do [ $b = 2 ] && continue 2; [ $a = 2 ] && break 9; R+=$a$b,; done; done; "
        "while true; do while true; do break 2; done; R+=no; done; record $R"
    ),
    "leaving a loop outside of one": "break; record yes",
    "IFS divides words": (
        'L=a,b,,c:d; IFS=,; for w in $L; do R+="[$w]"; done; IFS=:; set -- $L x"$L"; N=$#; IFS=; set -- "$R" $L; '
        'record "$R" $N $#'
    ),
    "words with equals": 'O=(+a.b=${X:-1} "c=[\'d\',\'e\']" f=\\"none\\"); record "${O[@]}"',
}


def run(script: Path, text: str, **variables: str) -> list[tuple[str, ...]]:
    script.write_text(text)
    return list(run_script(script, variables).commands)


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_script_does_what_bash_does(name, tmp_path):
    program = f'record() {{ printf \'%s\\0\' "$#" "$@" >&5; }}\n{SNIPPETS[name]}\n'
    said, theirs = os.pipe()
    subprocess.run(["bash", "-c", f"exec 5>&{theirs}\n{program}"], cwd=tmp_path, check=False, pass_fds=[theirs])
    os.close(theirs)
    with os.fdopen(said, "rb") as file:
        words = file.read().decode().split("\0")[:-1]
    found = [word for words in run(tmp_path / "a.sh", SNIPPETS[name]) if words[0] == "record" for word in words[1:]]
    counts = [len(words) - 1 for words in run(tmp_path / "a.sh", SNIPPETS[name]) if words[0] == "record"]
    expected, expected_counts = [], []
    while words:
        expected_counts.append(int(words[0]))
        expected += words[1 : int(words[0]) + 1]
        del words[: int(words[0]) + 1]
    assert (found, counts) == (expected, expected_counts)


HARMFUL = {
    "programs": "touch $TARGET; /usr/bin/touch $TARGET; ./touch $TARGET; $BIN/touch $TARGET; rm -rf $VICTIM",
    "substitutions": "A=$(touch $TARGET; /usr/bin/touch $TARGET); B=`touch $TARGET`; diff <(/usr/bin/touch $TARGET) x",
    "redirections": "echo x > $TARGET; cat >> $TARGET; : >| $TARGET; { :; } &> $TARGET; (:) 2> $TARGET; : <> $TARGET",
    "redirections that a text hides": 'eval \'echo x > \'$TARGET; bash -c "echo x > $TARGET"; eval ": 1<>$TARGET"',
    "channels": "exec 3> $TARGET; exec {X}> $TARGET; : > $VICTIM; coproc /usr/bin/touch $TARGET",
    "exec": "exec /usr/bin/touch $TARGET; builtin exec touch $TARGET; command exec touch $TARGET",
    "ways around PATH": "command -p touch $TARGET; PATH=$BIN touch $TARGET; export PATH=$BIN; touch $TARGET; "
    "hash -p $BIN/touch t; t $TARGET; BASH_CMDS[u]=$BIN/touch; u $TARGET; env touch $TARGET",
    "ways out of restrictions": "set +r; set +o restricted; shopt -u restricted_shell; "
    "unset -f command_not_found_handle; "
    'enable -f /lib/x.so x; BASH_ENV=$TARGET bash -c :; sh -c "echo x > $TARGET"; /usr/bin/touch $TARGET',
    "builtins": "kill -9 -1; builtin kill -9 $PPID; enable kill; command kill -9 $PPID; ulimit -v unlimited; "
    "history -s x; history -w $TARGET; fc -l; trap 'touch $TARGET' EXIT DEBUG",
    "functions": "command_not_found_handle() { /usr/bin/touch $TARGET; }; nothing; /usr/bin/touch() { :; }; "
    "unset -f /usr/bin/touch; /usr/bin/touch $TARGET",
    "moves": "cd / && rm -rf ./* ; pushd /tmp; builtin cd /; mv $VICTIM $TARGET; . /usr/bin/touch $TARGET",
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.long) if each == "functions" else each for each in HARMFUL]
)
def test_no_program_runs_and_no_file_is_written(name, tmp_path):
    victim, target = tmp_path / "victim", tmp_path / "target"
    victim.write_text("here")
    commands = run(
        tmp_path / "a.sh",
        HARMFUL[name] + "\ntrain --a 1\n",
        VICTIM=str(victim), TARGET=str(target), BIN="/usr/bin",
    )  # fmt: skip
    assert victim.read_text() == "here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sh", "victim"]
    if name not in ("functions", "ways out of restrictions"):  # which hide the report of later programs
        assert ("train", "--a", "1") in commands  # others may run beside it


@pytest.mark.long
def test_what_was_started_ends_with_the_script(tmp_path):
    mark = f"relibra-{os.getpid()}-{time.monotonic_ns()}"
    script = tmp_path / f"{mark}.sh"
    script.write_text("set -m\nwhile :; do :; done &\n(while :; do :; done) &\ntrain\n")
    with pytest.raises(InvalidInput, match="within 5 s"):
        call_bounded(run_script, script, {})
    eventually(lambda: not [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _read(path)])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/usr/bin/python3 train.py --a", "/usr/bin/python3 train.py --a"),
        ('A="x y" B=1 "$V/bin/python" train.py', "/opt/v/bin/python train.py"),
        ("exec torchrun train.py > log 2>&1", "torchrun train.py"),
        ("nohup python train.py 2>&1 | tee log &", "python train.py"),
        ("bash -c 'python train.py > log'", "python train.py"),
        ("set -e; false; python train.py", "python train.py"),
        ("wait; trap - EXIT; exit 1; python train.py", "python train.py"),
        ("until curl localhost; do sleep 5; done; python train.py", "python train.py"),
        ("while true; do sleep 60; done\npython train.py", "python train.py"),
        (": ${MUST:?tell me}; python train.py $MUST", "python train.py $MUST"),
        ("export PATH=/x:$PATH; PATH=/y; python train.py", "python train.py"),
        ("cat > job.yaml <<EOF\n> $(nproc)\nEOF\npython train.py", "python train.py"),
    ],
)
def test_a_training_is_reported_however_it_is_started(text, words, tmp_path):
    commands = [" ".join(map(show_unknown, command)) for command in run(tmp_path / "a.sh", text, V="/opt/v")]
    assert words in commands


def test_what_only_the_machine_can_tell_is_marked(tmp_path):
    command = run(tmp_path / "a.sh", 'train --a "$OUTSIDE/x" --b $(nproc) --c ${GIVEN} --d ${NONE:-4}', GIVEN="7")[-1]
    assert [show_unknown(word) for word in command] == [
        "train", "--a", "$OUTSIDE/x", "--b", "$(nproc)", "--c", "7", "--d", "4",
    ]  # fmt: skip
    assert [is_known(word) for word in command] == [True, True, False, True, False, True, True, True, True]


def test_files_are_read_from_beside_the_script_even_if_their_path_is_of_another_machine(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.sh").write_text('source "$(dirname "${BASH_SOURCE[0]}")/b.sh"\ndeclare -A X=([a]=1)')
    (tmp_path / "models" / "b.sh").write_text("MODEL_ARGS=(--moe)")
    text = (
        'D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"\n'
        'source "$D/models/a.sh"\ntrain ${MODEL_ARGS[@]} ${X[a]}'
    )
    assert run(tmp_path / "run.sh", text)[-1] == ("train", "--moe", "1")
    (tmp_path / "run.sh").write_text(". /root/x/models/b.sh\nsource /root/none.sh\ntrain ${MODEL_ARGS[@]}")
    found = run_script(tmp_path / "run.sh", {})
    assert found.commands[-1] == ("train", "--moe")
    assert found.doubts == ("source /root/none.sh (no such file): settings in this file are not known",)


@pytest.mark.parametrize(
    ("text", "line"), [("a\n'b", 2), ("if true; then\n a", 3), ("a\n)", 2), ("a <<E\nb", 2), ("eval 'if'", 2)]
)
def test_what_is_no_bash_is_listed_with_its_line(text, line, tmp_path):
    (tmp_path / "a.sh").write_text(text)
    doubts = run_script(tmp_path / "a.sh", {}).doubts
    assert any(doubt.startswith(f"line {line}: ") for doubt in doubts), doubts
