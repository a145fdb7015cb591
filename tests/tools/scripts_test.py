# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart, tools/install-packages and tests/run: what can be seen of them without installing anything."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = sys.argv.pop(1)


def run(script, *arguments, env=None):
    return subprocess.run([os.path.join(ROOT, script), *arguments], capture_output=True, text=True, timeout=60,
                          env=env if env is not None else dict(os.environ))


class Scripts(unittest.TestCase):
    def test_syntax(self):
        for script in ("tools/quickstart", "tools/install-packages", "tests/run", ".ci/run"):
            path = os.path.join(ROOT, script)
            self.assertTrue(os.access(path, os.X_OK), script)
            self.assertEqual(subprocess.run(["bash", "-n", path]).returncode, 0, script)

    def test_unknown_words_are_named_with_the_usage(self):
        done = run("tests/run", "--bogus")
        self.assertEqual(done.returncode, 2)
        self.assertIn('"--bogus"', done.stderr)
        self.assertIn("--tsan", done.stderr)
        self.assertIn("--gpu", done.stderr)
        done = run("tools/install-packages", "bogus")
        self.assertEqual(done.returncode, 2)
        self.assertIn('"bogus"', done.stderr)

    def test_what_was_skipped_is_told_with_its_reason(self):
        """Whole tests, cases of Googletest and of unittest; those that ran are not told."""
        log = ["test: treering:shim / frameworks", "result: exit status 77", "cupy cannot be imported", "=====",
               "test: treering:api / hot_path", "result: exit status 0", "../hot_path_test.cpp:256: Skipped", "2 cores are usable", "=====",
               "test: treering:launch / torchrun", "result: exit status 77", "torchrun ... skipped 'no torch'", "OK (skipped=1)", "=====",
               "test: treering:core / log", "result: exit status 0", "all is well", "====="]
        with open(os.path.join(ROOT, "tests/run")) as file:
            text = file.read()
        function = text[text.index("note_skips() {"):]
        function = function[:function.index("\n}\n") + 3]
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("\n".join(log) + "\n")
            file.flush()
            script = f'skips=()\n{function}note_skips plain {file.name}; printf "%s\\n" "${{skips[@]}}"'
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stdout.splitlines(), ["plain: treering:api / hot_path: 2 cores are usable",
                                                    "plain: treering:launch / torchrun: 'no torch'",
                                                    "plain: treering:shim / frameworks: cupy cannot be imported"], done.stderr)

    def test_every_line_of_the_package_file_is_a_list_and_a_package(self):
        with open(os.path.join(ROOT, "tools/packages")) as file:
            lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
        self.assertEqual({line[0] for line in lines}, {"build", "test", "launchers", "rdma", "peers"})
        self.assertTrue(all(len(line) == 2 for line in lines))

    def fake_tools(self, folder, user):
        """dpkg-query that has everything but strace, apt-get and sudo that tell what they were called with."""
        for name, text in (("dpkg-query", 'case "$*" in *strace) exit 1;; esac; echo -n "install ok installed"'),
                           ("apt-get", f'echo "apt-get $*" >> {folder}/log'),
                           ("sudo", f'echo sudo >> {folder}/log; exec "$@"'), ("id", f"echo {user}")):
            path = os.path.join(folder, name)
            with open(path, "w") as file:
                file.write(f"#!/bin/bash\n{text}\n")
            os.chmod(path, 0o755)
        return dict(os.environ, PATH=folder + ":" + os.environ["PATH"])

    def test_only_what_is_missing_is_installed_through_sudo_where_needed(self):
        for user, through_sudo in (("0", False), ("1000", True)):
            with tempfile.TemporaryDirectory() as folder:
                env = self.fake_tools(folder, user)
                nothing = run("tools/install-packages", "build", env=env)
                self.assertEqual((nothing.returncode, nothing.stdout), (0, ""))
                self.assertFalse(os.path.exists(os.path.join(folder, "log")))
                done = run("tools/install-packages", "build", "test", env=env)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("  strace\n", done.stdout)
                self.assertNotIn("cmake", done.stdout)
                with open(os.path.join(folder, "log")) as file:
                    log = file.read()
                self.assertEqual("sudo\n" in log, through_sudo)
                self.assertIn("install -y -q --no-install-recommends strace", log)
                self.assertNotIn("update", log)


if __name__ == "__main__":
    unittest.main()
