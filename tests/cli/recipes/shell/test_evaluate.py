"""Scripts are evaluated as bash evaluates them, and nothing of them is run."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from relibra.cli.recipes.shell.evaluate import expand_script
from relibra.cli.recipes.shell.unknown import is_known, shown
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
    "programs": 'record "$(dirname /a/b/c)" "$(basename /a/b/c.sh .sh)" "$(dirname c)"',
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("name", SNIPPETS)
def test_a_script_is_expanded_as_bash_does(name, tmp_path):
    script = tmp_path / "script.sh"
    script.write_text(SNIPPETS[name] + "\n")
    program = f"record() {{ printf '%s\\0' \"$@\"; printf 'END\\0'; }}\n{script.read_text()}"
    said = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, check=False).stdout.decode()
    expected = [tuple(each.split("\0")) if each else () for each in said.removesuffix("END\0").split("\0END\0")]
    found = [each[1:] for each in expand_script(script, script.read_text(), {}).commands if each[0] == "record"]
    assert found == [tuple(part for part in each) for each in _without_end(expected)]


def _without_end(calls: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [
        call[:-1] if call and call[-1] == "" and number == len(calls) - 1 else call for number, call in enumerate(calls)
    ]


HARMFUL = """
rm -rf "$VICTIM"
echo x > "$TARGET"
cat /dev/null >> $TARGET 2> "$TARGET.err"
touch $TARGET
A=$(touch "$TARGET"; echo 1)
B=`touch $TARGET`
exec 3> "$TARGET"
eval "touch $TARGET"
bash -c "touch $TARGET"
trap 'touch $TARGET' EXIT
f() { touch "$TARGET"; }; f
diff <(touch "$TARGET") /dev/null
kill -9 $$ -1
cd "$FOLDER" && rm -rf ./*
train $A $B
"""


def test_nothing_of_a_script_is_run(tmp_path, monkeypatch):
    kept, target = tmp_path / "kept", tmp_path / "target"
    kept.write_text("here")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    script = tmp_path / "script.sh"
    script.write_text(HARMFUL)
    given = {"VICTIM": str(kept), "TARGET": str(target), "FOLDER": str(tmp_path)}
    found = expand_script(script, HARMFUL, given)
    assert found.commands[-1][0] == "train"
    assert ("rm", "-rf", str(kept)) in found.commands
    assert kept.read_text() == "here"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept", "script.sh"]


def test_what_only_running_can_tell_is_marked():
    (command,) = expand_script(
        Path("a.sh"), 'train --a "$FROM_OUTSIDE/x" --b $(nproc) --c ${GIVEN}', {"GIVEN": "7"}
    ).commands[1:]
    assert [shown(each) for each in command] == ["train", "--a", "$FROM_OUTSIDE/x", "--b", "$(nproc)", "--c", "7"]
    assert [is_known(each) for each in command] == [True, True, False, True, False, True, True]


@pytest.mark.parametrize(
    "word",
    ["${P##*/}", "${P%.*}", "${P/b/X}", "${P:3:2}", "${P^^}", "${!P}", "${P[@]:1}", "$'a'", "<(a)", "$((P ? 1 : 2))"],
)
def test_a_form_that_no_published_launcher_uses_is_marked(word):
    (command,) = expand_script(Path("a.sh"), f"P=/a/b.c; train --a {word} --b", {}).commands
    assert [is_known(each) for each in command] == [True, True, False, True]


@pytest.mark.parametrize(
    "text",
    [
        "NODES=($(scontrol show)); R=${#NODES[@]}; R=$((R * 8))",
        "R=${#OUTSIDE}",
        "f() { R=$#; }; f $OUTSIDE",
        "R=$((OUTSIDE * 8))",
        "R=1; (( R = OUTSIDE > 1 ? 8 : 1 ))",
        "R=1; IFS=, read R A <<< $OUTSIDE",
        "R=1; read -a R",
        "R=1; mapfile -t R < hosts",
        "R=$(which python3)",
    ],
)
def test_what_depends_on_the_outside_is_not_taken_for_known(text):
    command = expand_script(Path("a.sh"), text + "; train $R", {}).commands[-1]
    assert command[0] == "train"
    assert not is_known("".join(command[1:]))


@pytest.mark.parametrize(
    "text",
    [
        '[ "$X" -gt 1 ]',
        "[[ $X == a ]]",
        "test -n $X",
        "(( X > 1 ))",
        "[[ X -gt 1 ]]",
        'let "A = X * 2"',
        "case $X in a) A=1 ;; esac",
    ],
)
def test_a_branch_that_depends_on_the_outside_is_listed(text):
    (doubt,) = expand_script(Path("a.sh"), text, {}).doubts
    assert re.search(r"line 1: .*X.* not known; read as", doubt)
    assert expand_script(Path("a.sh"), text, {"X": "2"}).doubts == ()


@pytest.mark.parametrize("text", ["[[ a -nt b ]]", "[[ a =~ *x ]]", "A=$(< f)", "cat <<E | b\nx\nE", "eval 'if'"])
def test_a_statement_that_is_not_understood_is_listed(text):
    (doubt,) = expand_script(Path("a.sh"), text, {}).doubts
    assert doubt.startswith("line 1: ")


def test_files_are_read_from_beside_the_script_even_if_their_path_is_of_another_machine(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.sh").write_text("MODEL_ARGS=(--moe)")
    text = 'D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"\nsource "$D/models/a.sh"\ntrain ${MODEL_ARGS[@]}'
    assert expand_script(tmp_path / "run.sh", text, {}).commands[-1] == ("train", "--moe")
    elsewhere = "source /root/project/models/a.sh\nsource /root/none.sh\ntrain ${MODEL_ARGS[@]}"
    found = expand_script(tmp_path / "run.sh", elsewhere, {})
    assert found.commands[-1] == ("train", "--moe")
    assert found.doubts == ("line 2: source /root/none.sh (no such file): settings in this file are not known",)
    (tmp_path / "models" / "a.sh").write_text("if")
    (doubt,) = expand_script(tmp_path / "run.sh", "source models/a.sh; train", {}).doubts
    assert doubt.startswith("line 1: source models/a.sh (line 1: expected bash")


@pytest.mark.parametrize(
    "text",
    ["while true; do :; done; train", "until curl localhost; do sleep 5; done; train"],
)
def test_a_script_that_waits_for_ever_does_not_keep_anybody(text):
    assert expand_script(Path("a.sh"), text, {}).commands[-1] == ("train",)


def test_a_function_that_calls_itself_is_refused():
    with pytest.raises(InvalidInput, match="calls more than 60 deep"):
        expand_script(Path("a.sh"), "f() { f; }; f; train", {})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n'b", 1),
        ("if true; then\n a", 1),
        ("for x in a; do\n b", 1),
        ("a\n(b", 2),
        ("case a in\n b) c", 1),
        ("a <<E\nb", 1),
    ],
)
def test_a_script_that_is_no_bash_is_refused_with_the_line(text, line):
    with pytest.raises(InvalidInput, match=f"line {line}: "):
        expand_script(Path("a.sh"), text, {})
