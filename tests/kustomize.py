"""Resolves kustomize folders as far as ours go: resources, labels, images. Refuses everything else, so that a feature is never read and ignored.

A stand-in for `kubectl kustomize`, which is not everywhere; tests/contract/test_deploy.py holds the two to the same objects where there is one.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

API = "kustomize.config.k8s.io/v1beta1"
KNOWN = {"apiVersion", "kind", "resources", "labels", "images"}
#: Where an object has pods in it.
TEMPLATED = {"Deployment", "StatefulSet", "DaemonSet"}

Object = dict[str, Any]


def build(folder: Path) -> list[Object]:
    """The objects of a folder with a kustomization.yaml. Raises AssertionError for what kustomize would refuse, and for what this does not know."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(kustomization) <= KNOWN, set(kustomization) - KNOWN
    assert (kustomization["apiVersion"], kustomization["kind"]) == (API, "Kustomization")
    objects: list[Object] = []
    for name in kustomization["resources"]:
        path = folder / name
        if path.is_dir():
            objects += build(path)
        else:
            assert path.resolve().is_relative_to(folder.resolve()), f"{name} lies outside its kustomization"
            objects += [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    objects = copy.deepcopy(objects)
    for entry in kustomization.get("labels", ()):
        assert set(entry) == {"pairs"}, entry
        for each in objects:
            each["metadata"].setdefault("labels", {}).update(entry["pairs"])
    for image in kustomization.get("images", ()):
        assert set(image) <= {"name", "newName", "newTag"}, image
        used = [_retag(container, image) for each in objects for container in containers_of(each)]
        assert any(used), f"no container has the image {image['name']}"
    names = [name_of(each) for each in objects]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
    return objects


def name_of(each: Object) -> tuple[str, str, str]:
    """What makes an object one: kind, namespace, name."""
    return each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]


def pod_of(each: Object) -> Object:
    """The pod template's spec."""
    spec: Object = each["spec"]["template"]["spec"]
    return spec


def containers_of(each: Object) -> list[Object]:
    """The containers of an object with pods in it."""
    if each["kind"] not in TEMPLATED:
        return []
    pod = pod_of(each)
    return [*pod["containers"], *pod.get("initContainers", ())]


def _retag(container: Object, image: Object) -> bool:
    name, _, tag = container["image"].partition(":")
    if name != image["name"]:
        return False
    container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
    return True
