/* A plugin for tests/unit/test_plugin.c; the macros FAKE_… select its fault. */
#include "device/dev/plugin.h"

#include <stdio.h>

#include "io/opt.h"
#include "io/version.h"

static struct vfm_dev *open_none(const struct vfm_plugin_opts *o, struct vfm_err *err)
{
	vfm_fail(err, VFM_EENV, "rank %d of %d finds no such device", o->local_rank, o->local_size);
	return NULL;
}

static void versions(char *buf, size_t len)
{
	snprintf(buf, len, "fake 1.2.3");
}

#ifndef FAKE_ABI
#define FAKE_ABI VFM_PLUGIN_ABI
#endif
#ifndef FAKE_COMMIT
#define FAKE_COMMIT vfm_commit
#endif
#ifndef FAKE_SYMBOL
#define FAKE_SYMBOL vfm_plugin
#endif
extern const struct vfm_plugin FAKE_SYMBOL;
const struct vfm_plugin FAKE_SYMBOL = {
	.abi = FAKE_ABI, .name = FAKE_NAME, .commit = FAKE_COMMIT, .open = open_none, .versions = versions};
