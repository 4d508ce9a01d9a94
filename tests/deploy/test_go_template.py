import pytest

from deploy.helm.go_template import Templates

ROOT = {
    "Values": {"n": 2, "name": "a b", "flag": True, "off": False, "labels": {"b": "2", "a": "1"}, "list": [1, 2]},
    "Chart": {"AppVersion": "1.2"},
}


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("x: {{ .Values.n }}", "x: 2"),
        ("{{ .Values.flag }}", "true"),
        ("{{ .Values.name | quote }}", '"a b"'),
        ('{{ "" | default .Chart.AppVersion }}', "1.2"),
        ('{{ .Values.name | replace "a" "c" }}', "c b"),
        ("a\n  {{- if .Values.off }}\nb\n  {{- else if not .Values.off }}\nc\n  {{- end }}\nd", "a\nc\nd"),
        ("{{ if and .Values.flag (or .Values.off .Values.n) }}yes{{ else }}no{{ end }}", "yes"),
        ("{{ with .Values.labels }}{{ .a }}{{ $.Chart.AppVersion }}{{ end }}", "11.2"),
        ("{{ with .Values.off }}no{{ end }}", ""),
        ('x:{{ "\\n- a\\n" | trim | nindent 2 }}', "x:\n  - a"),
        ("{{ range .Values.list }}<{{ . }}>{{ end }}", "<1><2>"),
        ("{{ range $k, $v := .Values.labels }}{{ $k }}={{ $v }};{{ end }}", "a=1;b=2;"),
        ("x:\n  {{- toYaml .Values.labels | nindent 2 }}", "x:\n  a: '1'\n  b: '2'"),
        ('{{ define "part" }}<{{ . }}>{{ end }}{{ include "part" .Values.name }}', "<a b>"),
        ('{{ with "k: 1" | fromYaml }}{{ .k }}{{ end }}', "1"),
        ("a {{- /* said nowhere */ -}} b", "ab"),
    ],
)
def test_it_renders_as_helm_does(template: str, rendered: str) -> None:
    assert Templates(ROOT).render(template) == rendered


@pytest.mark.parametrize(
    ("template", "error", "named"),
    [
        ("{{ .Values.absent }}", KeyError, "absent"),
        ("{{ .Values.n | sha256sum }}", ValueError, "unknown here: sha256sum"),
        ("{{ if .Values.n }}", ValueError, "has no end"),
        ("{{ end }}", ValueError, "closes nothing"),
        ("{{ not (.Values.n }}", ValueError, "parentheses"),
        ("{{ .Values.n) }}", ValueError, "parentheses"),
        ("{{ .Values.n .Values.name }}", ValueError, "a function was expected"),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(template: str, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        Templates(ROOT).render(template)
