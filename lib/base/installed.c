/* installed.c - finds share/vfm/FOLDER/NAME.json relative to /proc/self/exe. */
#include "base/installed.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

char *vfm_installed_find(const char *folder, const char *name, const char *env, struct vfm_err *err)
{
	static const char *const below[] = {"../share/vfm", "../../share"};
	const char *given = getenv(env);
	char exe[PATH_MAX], *slash, *path;
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
	for (size_t i = 0; slash && i < sizeof(below) / sizeof(*below); i++) {
		path = vfm_strfmt("%s/%s/%s/%s.json", exe, below[i], folder, name);
		if (access(path, F_OK) == 0)
			return path;
		free(path);
	}
	vfm_fail(err, VFM_EUSAGE, "no '%s' among the %s: there is no %s.json in %s/%s/%s or %s/%s/%s (a path, or %s?)",
		name, folder, name, exe, below[0], folder, exe, below[1], folder, env);
	return NULL;
}
