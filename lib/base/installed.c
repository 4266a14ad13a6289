/* installed.c - finds files in share/vfm/FOLDER relative to /proc/self/exe. */
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

char *vfm_command_folder(void)
{
	char exe[PATH_MAX], *slash;
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	exe[n > 0 ? n : 0] = '\0';
	slash = strrchr(exe, '/');
	return slash ? vfm_strfmt("%.*s", (int)(slash - exe), exe) : NULL;
}

/* Returns FOLDER/name of the installation if access() allows `mode`, else NULL.  exe: vfm_command_folder. */
static char *find_in_installation(const char *exe, const char *folder, const char *name, int mode)
{
	char *path = NULL;

	for (size_t i = 0; exe && !path && i < PLACES; i++) {
		path = vfm_strfmt("%s/%s/%s/%s", exe, below[i], folder, name);
		if (access(path, mode) != 0) {
			free(path);
			path = NULL;
		}
	}
	return path;
}

/* Returns whether a folder of PATH has a program of this name. */
static bool is_in_path(const char *name)
{
	const char *at = getenv("PATH"), *end;
	bool found = false;

	for (; at && *at && !found; at = *end ? end + 1 : end) {
		char *path;

		end = strchrnul(at, ':');
		path = vfm_strfmt("%.*s/%s", (int)(end - at), at, name);
		found = access(path, X_OK) == 0;
		free(path);
	}
	return found;
}

char *vfm_installed_program(const char *folder, const char *name)
{
	char *exe = vfm_command_folder(), *path = NULL;

	if (!strchr(name, '/') && !is_in_path(name))
		path = find_in_installation(exe, folder, name, X_OK);
	free(exe);
	return path;
}

void vfm_installed_use(const char *folder, char **argv)
{
	char *path = vfm_installed_program(folder, argv[0]);

	if (path) {
		free(argv[0]);
		argv[0] = path;
	}
}

bool vfm_is_program(const char *name)
{
	return strchr(name, '/') ? access(name, X_OK) == 0 : is_in_path(name);
}

char *vfm_installed_find(const char *folder, const char *name, const char *env, struct vfm_err *err)
{
	const char *given = getenv(env);
	char *exe, *file, *path, *list;

	if (strchr(name, '/') || strchr(name, '.'))
		return vfm_strdup(name);
	if (given && *given)
		return vfm_strfmt("%s/%s.json", given, name);
	exe = vfm_command_folder();
	file = vfm_strfmt("%s.json", name);
	path = find_in_installation(exe, folder, file, F_OK);
	free(file);
	if (path) {
		free(exe);
		return path;
	}
	list = list_installed(exe ? exe : "", folder);
	free(exe);
	vfm_fail(err, VFM_EUSAGE, "no '%s' among the %s: %s; also a path, or a folder in %s", name, folder,
		*list ? list : "none are installed", env);
	free(list);
	return NULL;
}
