"""Which data sets a `dataset` setting names, and what it cannot name."""

from protosphere.core.paths import listed
from protosphere.data.domains import domains_of, short_name
from tests.data.draws import decoded


def test_a_list_names_its_domains_by_the_last_part_of_a_path():
    found = domains_of(" /data/mnist/, usps,some/body ,~/more/svhn,./x")
    assert [each.name for each in found] == ["mnist", "usps", "some/body", "svhn", "x"]
    assert [each.dataset for each in found] == ["/data/mnist/", "usps", "some/body", "~/more/svhn", "./x"]
    for dataset in ("digits", "some/body", "/data/pictures", "../x", "no such name"):
        assert (domains_of(dataset), listed(dataset)) == ((), (dataset,))


def test_a_folder_with_a_comma_is_one_data_set(domain, opened, tmp_path):
    folder = domain("a,b")
    assert domains_of(folder) == ()
    data = opened(folder)
    assert data.key == decoded(folder, tmp_path / "cache").key
    assert (data.domains, data.domain_names) == (None, ())
    # what is not there may be a list
    assert listed(folder + "x") == (folder[: -len(",b")], "bx")


def test_all_subfolders_that_are_not_hidden_sorted_by_name(domain, tmp_path, monkeypatch):
    for name in ("beta", "alpha", "gamma,delta"):
        domain(name)
    for hidden in (".hidden", "__pycache__"):
        (tmp_path / "all" / hidden).mkdir()
    (tmp_path / "all" / "README.md").write_text("no folder")
    names = ["alpha", "beta", "gamma,delta"]
    monkeypatch.chdir(tmp_path)
    for every in (str(tmp_path / "all" / "*"), "./all/*"):
        found = domains_of(every)
        assert [each.name for each in found] == names
        assert [each.dataset for each in found] == [str(tmp_path / "all" / name) for name in names]
    (tmp_path / "all").rename(tmp_path / "all, or some")
    assert len(domains_of(str(tmp_path / "all, or some" / "*"))) == 3


def test_a_short_name():
    names = {"digits": "digits", "some/body": "body", "/data/mnist/": "mnist", "/data/pacs/*": "pacs"}
    names |= {"mnist, some/body,/data/usps": "mnist+body+usps", "mnist,,usps": "mnist+usps"}
    assert {dataset: short_name(dataset) for dataset in names} == names


def test_a_path_that_ends_in_dots_is_called_as_the_folder_that_it_leads_to(tmp_path, monkeypatch):
    (tmp_path / "clinics" / "north").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "clinics" / "north")
    monkeypatch.setenv("HOME", str(tmp_path / "clinics"))
    names = {"./": "north", "./.": "north", "../": "clinics", "../north/..": "clinics", "./*": "north", "~": "clinics"}
    names |= {"./,../": "north+clinics", "/": "/", "../north/": "north"}
    assert {dataset: short_name(dataset) for dataset in names} == names
