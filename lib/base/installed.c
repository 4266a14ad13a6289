/* installed.c - finds share/vfm/FOLDER/NAME.json relative to /proc/self/exe. */
#include "base/installed.h"

#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

/* Relative to the folder of the command: installed, and in a build. */
static const char *const below[] = {"../share/vfm", "../../share"};
enum { PLACES = sizeof(below) / sizeof(*below) };

/* Returns the names of all files, "h100-dgx, h200"; the caller frees it. */
static char *list_installed(const char *exe, const char *folder)
{
	char *list = vfm_strdup("");
	glob_t g = {0};

	for (size_t i = 0; i < PLACES && !g.gl_pathc; i++) {
		char *pattern = vfm_strfmt("%s/%s/%s/*.json", exe, below[i], folder);

		glob(pattern, 0, NULL, &g);
		free(pattern);
	}
	for (size_t i = 0; i < g.gl_pathc; i++) {
		char *name = strrchr(g.gl_pathv[i], '/') + 1, *longer;

		longer = vfm_strfmt("%s%s%.*s", list, i ? ", " : "", (int)strcspn(name, "."), name);
		free(list);
		list = longer;
	}
	globfree(&g);
	return list;
}

char *vfm_installed_find(const char *folder, const char *name, const char *env, struct vfm_err *err)
{
	const char *given = getenv(env);
	char exe[PATH_MAX], *slash, *path, *list;
	ssize_t n;

	if (strchr(name, '/') || strchr(name, '.'))
		return vfm_strdup(name);
	if (given && *given)
		return vfm_strfmt("%s/%s.json", given, name);
	n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = '\0';
	slash = strrchr(exe, '/');
	if (slash)
		*slash = '\0';
	for (size_t i = 0; slash && i < PLACES; i++) {
		path = vfm_strfmt("%s/%s/%s/%s.json", exe, below[i], folder, name);
		if (access(path, F_OK) == 0)
			return path;
		free(path);
	}
	list = list_installed(exe, folder);
	vfm_fail(err, VFM_EUSAGE, "no '%s' among the %s: %s; also a path, or a folder in %s", name, folder,
		*list ? list : "none are installed", env);
	free(list);
	return NULL;
}
