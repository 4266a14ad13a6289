/* Loading plugins, whole and faulty; which device a rank takes. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/dev/plugin.h"
#include "io/file.h"
#include "io/opt.h"
#include "io/version.h"

static char *dir; /* of tests/plugin */

static void fails(const char *name, const char *with)
{
	struct vfm_err err = {0};

	assert_null(vfm_plugin_load(name, &err));
	assert_int_equal(err.code, VFM_EENV);
	if (!strstr(err.msg, with))
		fail_msg("'%s' does not say '%s'", err.msg, with);
}

static void test_good(void **state)
{
	struct vfm_plugin_opts o = {.local_rank = 3, .local_size = 4};
	struct vfm_err err = {0};
	const struct vfm_plugin *p;
	char text[64];
	(void)state;

	setenv("VFM_PLUGIN_DIR", dir, 1);
	assert_true(vfm_plugin_exists("good"));
	p = vfm_plugin_load("good", &err);
	if (!p)
		fail_msg("%s", err.msg);
	assert_string_equal(p->name, "good");
	p->versions(text, sizeof(text));
	assert_string_equal(text, "fake 1.2.3");
	assert_null(p->open(&o, &err));
	assert_string_equal(err.msg, "rank 3 of 4 finds no such device");
	/* Kept: found again though the folder is not. */
	setenv("VFM_PLUGIN_DIR", "/nowhere", 1);
	assert_ptr_equal(vfm_plugin_load("good", &err), p);
}

static void test_faults(void **state)
{
	char with[200];
	(void)state;

	setenv("VFM_PLUGIN_DIR", dir, 1);
	snprintf(with, sizeof(with), "has version 4711 of the interface, this command has version %d", VFM_PLUGIN_ABI);
	fails("abi", with);
	snprintf(with, sizeof(with), "was built from commit 0123456789, this command from %s", vfm_commit);
	fails("commit", with);
	fails("symbol", "no symbol vfm_plugin");
	fails("name", "calls itself 'other'");
	fails("abi", "has version 4711"); /* again: a failure is not kept */
}

static void test_files(void **state)
{
	char tmp[] = "/tmp/vfm-plugin-XXXXXX", *path, with[PATH_MAX];
	struct vfm_err err = {0};
	(void)state;

	setenv("VFM_PLUGIN_DIR", "/nowhere", 1);
	assert_false(vfm_plugin_exists("absent"));
	fails("absent", "no plugin libvfm_absent.so in /nowhere");
	unsetenv("VFM_PLUGIN_DIR");
	fails("absent", "/../lib or /");
	fails("absent", "/../lib/vfm");
	assert_non_null(mkdtemp(tmp));
	setenv("VFM_PLUGIN_DIR", tmp, 1);
	path = vfm_strfmt("%s/libvfm_text.so", tmp);
	assert_int_equal(vfm_write_file(path, "not a library\n", 14, &err), 0);
	snprintf(with, sizeof(with), "cannot load plugin: %s", path);
	fails("text", with);
	assert_int_equal(truncate(path, 0), 0);
	fails("text", with);
	assert_int_equal(vfm_rm_rf(tmp, &err), 0);
	free(path);
}

static int choose(int visible, int rank, int size, bool bound, bool share, struct vfm_err *err)
{
	return vfm_plugin_choose(&(struct vfm_plugin_choice){.what = "CUDA",
					 .visible = visible,
					 .local_rank = rank,
					 .local_size = size,
					 .bound = bound,
					 .share = share},
		err);
}

static void test_choice(void **state)
{
	struct vfm_err err = {0};
	(void)state;

	for (int r = 0; r < 8; r++)
		assert_int_equal(choose(8, r, 8, false, false, NULL), r);
	assert_int_equal(choose(8, 1, 2, true, false, NULL), 1);
	/* Under Slurm each rank may see its own device alone. */
	assert_int_equal(choose(1, 5, 8, true, false, NULL), 0);
	/* All ranks fail, not only those that are left over. */
	for (int r = 0; r < 4; r++) {
		assert_int_equal(choose(2, r, 4, true, false, &err), VFM_EUSAGE);
		assert_string_equal(err.msg,
			"4 ranks on this node, but 2 CUDA devices (VFM_CUDA_SHARE=1 lets ranks share one, to test)");
	}
	assert_int_equal(choose(1, 0, 2, false, false, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "2 ranks on this node, but 1 CUDA device ("));
	assert_int_equal(choose(1, 1, 2, false, true, NULL), 0);
	assert_int_equal(choose(2, 3, 4, false, true, NULL), 1);
	assert_int_equal(choose(0, 0, 1, true, true, &err), VFM_EENV);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_choice),
	};
	char *slash = strrchr(argv[0], '/');
	int rc;

	(void)argc;
	dir = slash ? vfm_strfmt("%.*s/../plugin", (int)(slash - argv[0]), argv[0]) : vfm_strdup("../plugin");
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	free(dir);
	return rc;
}
