/* host_memory.c - the least of the physical memory and the memory limits of cgroups version 1 and 2. */
#include "io/host_memory.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/num.h"
#include "io/file.h"

/* Returns the number in a file, INFINITY for "max" or without a number. */
static double read_limit(const char *dir, const char *name)
{
	char *path = vfm_strfmt("%s/%s", dir, name), *text = NULL;
	double limit = INFINITY;
	int64_t bytes;
	size_t n;

	if (vfm_read_file(path, 64, &text, &n, NULL) == 0) {
		text[strcspn(text, "\n")] = '\0';
		if (vfm_parse_i64(text, 0, INT64_MAX, &bytes, NULL) == 0)
			limit = (double)bytes;
	}
	free(text);
	free(path);
	return limit;
}

/* Returns the least limit from the group to the root.  In a container the path may be one of the host: its folders are
 * absent, and the root is the container's group. */
static double least_limit(const char *root, const char *group, const char *name)
{
	char *dir = vfm_strfmt("%s%s", root, group);
	size_t top = strlen(root);
	double least = INFINITY;

	for (;;) {
		char *slash;

		least = fmin(least, read_limit(dir, name));
		slash = strrchr(dir + top, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	free(dir);
	return least;
}

/* Returns whether a list with commas contains a word. */
static bool list_contains(const char *list, const char *word)
{
	size_t n = strlen(word), k;

	for (;; list += k + 1) {
		k = strcspn(list, ",");
		if (k == n && strncmp(list, word, n) == 0)
			return true;
		if (!list[k])
			return false;
	}
}

/* Each line is ID:CONTROLLERS:PATH.  Version 2 has the id 0 and no controllers. */
double vfm_cgroup_limit(const char *groups, const char *root)
{
	char *text = NULL, *next, *v1 = vfm_strfmt("%s/memory", root);
	double least = INFINITY;
	size_t n;

	if (vfm_read_file(groups, 1 << 20, &text, &n, NULL) < 0)
		text = NULL;
	for (char *line = text; line && *line; line = next) {
		char *controllers, *path;

		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = '\0';
		controllers = strchr(line, ':');
		path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path)
			continue;
		*controllers++ = '\0';
		*path++ = '\0';
		if (strstr(path, "/..")) /* outside the namespace of this process */
			path = "";
		if (!strcmp(line, "0") && !*controllers)
			least = fmin(least, least_limit(root, path, "memory.max"));
		else if (list_contains(controllers, "memory"))
			least = fmin(least, least_limit(v1, path, "memory.limit_in_bytes"));
	}
	free(text);
	free(v1);
	return least;
}

double vfm_host_memory(void)
{
	double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

	return fmin(all, vfm_cgroup_limit("/proc/self/cgroup", "/sys/fs/cgroup"));
}
