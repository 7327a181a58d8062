"""The names that Kubernetes accepts."""

import pytest

from airflow_provider_gangjobs.kube import names

LONG_LABEL = "a" * 63


@pytest.mark.parametrize("text", ["a", "0a", "a-b", LONG_LABEL])
def test_dns_labels_are_accepted(text):
    assert names.is_dns_label(text)


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a.b", "a_b", "a\n", LONG_LABEL + "a", None, 4, "ä"])
def test_other_texts_are_refused_as_dns_labels(text):
    assert not names.is_dns_label(text)


@pytest.mark.parametrize(
    ("text", "accepted"), [("a.b-c.0", True), ("a..b", False), ("a.-b", False), ("a" * 254, False)]
)
def test_subdomain_is_labels_joined_by_dots(text, accepted):
    assert names.is_dns_subdomain(text) is accepted


def test_service_name_starts_with_a_letter():
    assert names.problem_with_dns_label_1035("0a") is not None
    assert names.problem_with_dns_label_1035("a0") is None


@pytest.mark.parametrize("value", ["", "a", "A_b.c-1", "1"])
def test_label_values_are_accepted(value):
    assert names.problem_with_label_value(value) is None


@pytest.mark.parametrize("value", ["-a", "a b", "a/b", "a" * 64, True, 1])
def test_other_label_values_are_refused(value):
    assert names.problem_with_label_value(value) is not None


@pytest.mark.parametrize("key", ["a", "example.org/a_B.c", "nvidia.com/gpu"])
def test_qualified_names_are_accepted(key):
    assert names.problem_with_qualified_name(key) is None


@pytest.mark.parametrize("key", ["", "/a", "a/", "A.org/x", "a/b/c", "a b", "x" * 64, "example.org/" + "x" * 64, 1])
def test_other_qualified_names_are_refused(key):
    assert names.problem_with_qualified_name(key) is not None


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("a b", "'a b' may only have letters"),
        ("", "is empty"),
        ("a/", "'a/' has no name after its prefix"),
        ("a/b c", "'a/b c' has a wrong name after its prefix: 'b c' may only have letters"),
    ],
)
def test_problem_of_a_qualified_name_says_which_part_is_wrong(key, problem):
    assert (names.problem_with_qualified_name(key) or "").startswith(problem)


def test_finalizer_needs_a_domain():
    assert "no domain" in (names.problem_with_finalizer("harvest") or "")
    assert names.problem_with_finalizer("example.org/harvest") is None
    assert names.problem_with_finalizer("foregroundDeletion") is None
    assert names.problem_with_finalizer("a b/c") is not None


@pytest.mark.parametrize(
    ("name", "accepted"), [("A", True), ("a-b.c", True), ("A=B", False), ("", False), ("Ä", False)]
)
def test_env_name_is_printable_ascii(name, accepted):
    assert (names.problem_with_env_name(name) is None) is accepted


@pytest.mark.parametrize(
    ("key", "accepted"), [("train.py", True), (".env", True), ("..", False), ("a/b", False), ("..a", False)]
)
def test_config_map_key_is_one_file_name(key, accepted):
    assert (names.problem_with_config_map_key(key) is None) is accepted


def test_file_that_is_named_as_a_folder_is_refused_for_that_reason():
    assert names.problem_with_config_map_key(".") == "'.' is the name of a folder"
    assert names.problem_with_config_map_key("..") == "'..' may not start with '..'"


def test_problem_quotes_the_text_and_its_length():
    assert names.problem_with_dns_label("a" * 70) == f"'{LONG_LABEL}'... has 70 characters, 63 are allowed"
