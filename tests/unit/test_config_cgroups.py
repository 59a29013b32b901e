"""[[attribution.cgroup]]: a task may be named after whole groups of the pattern, and nothing else."""

import pytest

from fsguard import config
from fsguard.errors import UsageError


def load(tmp_path, task):
    file = tmp_path / "fsguard.toml"
    file.write_text(f"[[attribution.cgroup]]\npattern = 'ci-(?P<job>[a-z]+)-([0-9]+)'\ntask = {task!r}\n")
    return config.load(str(file))


@pytest.mark.parametrize("task", ["plain", "ci-{job}", "{0}", "{1}-{2}", "{{job}}"])
def test_good_names(tmp_path, task):
    assert load(tmp_path, task).cgroups[0].task == task


@pytest.mark.parametrize(
    "task", ["{other}", "{3}", "{", "{0.foo}", "{job.__class__}", "{job[0]}", "{0:>999999999}", "{0!r}"]
)
def test_bad_names_are_refused_with_the_file(tmp_path, task):
    with pytest.raises(UsageError, match=r"fsguard\.toml:1: attribution\.cgroup names a group"):
        load(tmp_path, task)
