#include "io/twice.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/file.h"

static int copy_input(int from, FILE *to, const char *name, struct vfm_err *err)
{
	char *block = vfm_malloc(1 << 20);
	ssize_t n = 0;
	int rc = 0;

	while (rc == 0 && ((n = read(from, block, 1 << 20)) > 0 || (n < 0 && errno == EINTR)))
		if (n > 0 && fwrite(block, 1, (size_t)n, to) != (size_t)n)
			rc = vfm_fail_errno(err, VFM_EENV, "cannot copy '%s' to a temporary file (TMPDIR)", name);
	if (rc == 0 && n < 0)
		rc = vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", name);
	if (rc == 0 && fflush(to) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot copy '%s' to a temporary file (TMPDIR)", name);
	free(block);
	return rc;
}

static int open_twice(struct vfm_twice *t, int i, const char *name, struct vfm_err *err)
{
	bool is_stdin = !strcmp(name, "-");
	int fd = is_stdin ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC), rc = 0;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return vfm_fail_errno(err, VFM_EINPUT, "cannot open '%s'", name);
	if (S_ISREG(st.st_mode) && !is_stdin) {
		t->paths[i] = vfm_strdup(name);
	} else {
		rc = vfm_unlinked_temp(&t->copies[i], err);
		if (rc == 0)
			rc = copy_input(fd, t->copies[i], is_stdin ? "<stdin>" : name, err);
		if (rc == 0)
			t->paths[i] = vfm_strfmt("/proc/self/fd/%d", fileno(t->copies[i]));
	}
	if (!is_stdin)
		close(fd);
	return rc;
}

int vfm_twice_open(struct vfm_twice *t, char *const *files, int n, struct vfm_err *err)
{
	t->n = n ? n : 1;
	t->paths = vfm_calloc((size_t)t->n, sizeof(*t->paths));
	t->copies = vfm_calloc((size_t)t->n, sizeof(FILE *));
	for (int i = 0; i < t->n; i++)
		TRY(open_twice(t, i, n ? files[i] : "-", err));
	return 0;
}

void vfm_twice_close(struct vfm_twice *t)
{
	for (int i = 0; i < t->n; i++) {
		free(t->paths[i]);
		if (t->copies[i])
			fclose(t->copies[i]);
	}
	free(t->paths);
	free((void *)t->copies);
	*t = (struct vfm_twice){0};
}
