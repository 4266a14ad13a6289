/* plugin.c - looks for libvfm_NAME.so in VFM_PLUGIN_DIR or the lib folder of the installation, and loads it. */
#include "device/dev/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/installed.h"
#include "base/mem.h"
#include "io/opt.h"
#include "io/version.h"

enum { MAX_PLUGINS = 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct vfm_plugin *loaded[MAX_PLUGINS];

/* Returns the folders in search order, allocated, NULL-terminated. */
static void list_folders(char *dir[3])
{
	const char *given = getenv("VFM_PLUGIN_DIR");
	char *exe;

	dir[0] = dir[1] = dir[2] = NULL;
	if (given && *given) {
		dir[0] = vfm_strdup(given);
		return;
	}
	exe = vfm_command_folder();
	if (!exe)
		return;
	dir[0] = vfm_strfmt("%s/../lib", exe);
	dir[1] = vfm_strfmt("%s/../lib/vfm", exe);
	free(exe);
}

/* Returns the path of a plugin; NULL with the searched folders in err if it does not exist. */
static char *find_plugin(const char *name, struct vfm_err *err)
{
	char *dir[3], *path = NULL;

	list_folders(dir);
	for (int i = 0; !path && dir[i]; i++) {
		path = vfm_strfmt("%s/libvfm_%s.so", dir[i], name);
		if (access(path, F_OK) != 0) {
			free(path);
			path = NULL;
		}
	}
	if (!path && !dir[0])
		vfm_fail(err, VFM_EENV,
			"no plugin libvfm_%s.so: /proc/self/exe does not name the folder of this command (set "
			"VFM_PLUGIN_DIR)",
			name);
	else if (!path)
		vfm_fail(err, VFM_EENV, "no plugin libvfm_%s.so in %s%s%s: `make` builds it where nvcc is installed",
			name, dir[0], dir[1] ? " or " : "", dir[1] ? dir[1] : "");
	free(dir[0]);
	free(dir[1]);
	return path;
}

bool vfm_plugin_exists(const char *name)
{
	char *path = find_plugin(name, NULL);
	bool exists = path != NULL;

	free(path);
	return exists;
}

static int check_plugin(const struct vfm_plugin *p, const char *name, const char *path, struct vfm_err *err)
{
	/* The other fields are valid only for an equal ABI. */
	if (p->abi != VFM_PLUGIN_ABI)
		return vfm_fail(err, VFM_EENV,
			"plugin '%s' has version %u of the interface, this command has version %d: they come from "
			"different "
			"builds",
			path, (unsigned)p->abi, VFM_PLUGIN_ABI);
	if (strcmp(p->name, name) != 0)
		return vfm_fail(err, VFM_EENV, "plugin '%s' calls itself '%s'", path, p->name);
	if (strcmp(p->commit, vfm_commit) != 0)
		return vfm_fail(err, VFM_EENV, "plugin '%s' was built from commit %s, this command from %s", path,
			p->commit, vfm_commit);
	return 0;
}

static const struct vfm_plugin *open_at(const char *name, const char *path, struct vfm_err *err)
{
	void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct vfm_plugin *p;

	if (!so) {
		vfm_fail(err, VFM_EENV, "cannot load plugin: %s", dlerror());
		return NULL;
	}
	p = dlsym(so, "vfm_plugin");
	if (!p) {
		vfm_fail(err, VFM_EENV, "'%s' is not a plugin of vfm: it has no symbol vfm_plugin", path);
	} else if (check_plugin(p, name, path, err) < 0) {
		p = NULL;
	}
	/* An accepted plugin is never closed: threads of its libraries may still run in it. */
	if (!p)
		dlclose(so);
	return p;
}

const struct vfm_plugin *vfm_plugin_load(const char *name, struct vfm_err *err)
{
	const struct vfm_plugin *p = NULL;
	char *path = NULL;
	int n;

	pthread_mutex_lock(&lock);
	for (n = 0; n < MAX_PLUGINS && loaded[n]; n++)
		if (strcmp(loaded[n]->name, name) == 0) {
			p = loaded[n];
			goto out;
		}
	if (n == MAX_PLUGINS) {
		vfm_fail(err, VFM_EENV, "no more than %d plugins can be loaded", MAX_PLUGINS);
		goto out;
	}
	path = find_plugin(name, err);
	if (path)
		p = open_at(name, path, err);
	loaded[n] = p;
out:
	pthread_mutex_unlock(&lock);
	free(path);
	return p;
}

int vfm_plugin_choose(const struct vfm_plugin_choice *c, struct vfm_err *err)
{
	if (c->visible < 1)
		return vfm_fail(err, VFM_EENV, "no %s device is visible", c->what);
	if (c->local_size <= c->visible)
		return c->local_rank;
	/* A launcher that binds devices makes one device visible to each rank, with the number 0. */
	if (c->visible == 1 && c->bound)
		return 0;
	if (c->share)
		return c->local_rank % c->visible;
	return vfm_fail(err, VFM_EUSAGE,
		"%d ranks on this node, but %d %s device%s (VFM_CUDA_SHARE=1 lets ranks share one, to test)",
		c->local_size, c->visible, c->what, c->visible == 1 ? "" : "s");
}
