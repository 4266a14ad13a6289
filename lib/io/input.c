/* input.c - opens regular files and members of tars, and spools pipes that are read twice. */
#include "io/input.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/tar.h"

static const char *kind_of(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return "a folder";
	case S_IFIFO:
		return "a FIFO";
	case S_IFSOCK:
		return "a socket";
	case S_IFCHR:
		return "a character device";
	case S_IFBLK:
		return "a block device";
	default:
		return "a special file";
	}
}

static int check_regular(const char *path, const struct stat *st, struct vfm_err *err)
{
	if (S_ISREG(st->st_mode))
		return 0;
	return vfm_fail(err, VFM_EINPUT, "'%s' is %s, not a regular file", path, kind_of(st->st_mode));
}

int vfm_open_regular(const char *path, uint64_t *bytes, struct vfm_err *err)
{
	struct stat st;
	int fd, rc;

	/* Opening some devices has effects (a tape rewinds), and a socket cannot be opened. */
	if (stat(path, &st) != 0)
		return vfm_fail_errno(err, VFM_EINPUT, "cannot open '%s'", path);
	TRY(check_regular(path, &st, err));
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return vfm_fail_errno(err, VFM_EINPUT, "cannot open '%s'", path);
	/* The name may belong to another file by now. */
	rc = fstat(fd, &st) != 0 ? vfm_fail_errno(err, VFM_EINPUT, "cannot open '%s'", path)
				 : check_regular(path, &st, err);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	if (bytes)
		*bytes = (uint64_t)st.st_size;
	return fd;
}

int vfm_read_regular(const char *path, size_t max, char **data, size_t *len, struct vfm_err *err)
{
	int fd = vfm_open_regular(path, NULL, err), rc;

	*data = NULL;
	*len = 0;
	TRY(fd);
	rc = vfm_read_all(fd, path, max, data, len, err);
	close(fd);
	return rc;
}

bool vfm_has_byte_order_mark(const void *head, size_t len)
{
	return len >= 3 && !memcmp(head, "\xEF\xBB\xBF", 3);
}

const char *vfm_placeholder(const char *head, size_t len)
{
	static const char pointer[] = "version https://git-lfs.github.com/spec/";
	const char *end = head + len, *p = head;

	if (len >= sizeof(pointer) - 1 && !memcmp(head, pointer, sizeof(pointer) - 1))
		return "a Git LFS pointer in the place of the file: 'git lfs pull' fetches the file";
	if (vfm_has_byte_order_mark(head, len))
		p += 3;
	while (p < end && isspace((unsigned char)*p))
		p++;
	if (end - p < 8 || *p != '<')
		return NULL;
	for (int i = 1; i < 8; i++)
		if (!isprint((unsigned char)p[i]) && !isspace((unsigned char)p[i]))
			return NULL;
	return "a page of a web server (HTML or XML) in the place of the file: download the file again, perhaps with a "
	       "login";
}

/* ---- members of tars ---- */

/* Reads a decimal number without a leading zero.  Returns the text after it, or NULL. */
static const char *parse_decimal(const char *s, uint64_t *out)
{
	if (!isdigit((unsigned char)*s) || (s[0] == '0' && isdigit((unsigned char)s[1])))
		return NULL;
	for (*out = 0; isdigit((unsigned char)*s); s++) {
		if (*out > (INT64_MAX - 9) / 10)
			return NULL;
		*out = *out * 10 + (uint64_t)(*s - '0');
	}
	return s;
}

bool vfm_member_parse(struct vfm_member_name *n, const char *name)
{
	struct vfm_member_name m;
	const char *at, *s;

	for (at = name; (at = strchr(at, '@')); at++) {
		s = at > name ? parse_decimal(at + 1, &m.offset) : NULL;
		if (s && *s == '+' && (s = parse_decimal(s + 1, &m.size)) && s[0] == '/' && s[1]) {
			m.tar_len = (size_t)(at - name);
			m.member = s + 1;
			if (n)
				*n = m;
			return true;
		}
	}
	return false;
}

char *vfm_member_name(const char *tar, uint64_t offset, uint64_t size, const char *member)
{
	return vfm_strfmt("%s@%" PRIu64 "+%" PRIu64 "/%s", tar, offset, size, member);
}

/* Finds the content of a member by the header at its offset. */
static int find_content(
	struct vfm_input *in, uint64_t tar_size, const struct vfm_member_name *n, const char *tar, struct vfm_err *err)
{
	struct vfm_tar_member *m = vfm_malloc(sizeof(*m));
	struct vfm_tar t;
	int rc;

	vfm_tar_init_fd(&t, in->fd, tar_size, tar);
	t.pos = n->offset;
	rc = vfm_tar_next(&t, m, err);
	if (rc == 0)
		rc = vfm_fail(err, VFM_EINPUT, "'%s' ends at byte %" PRIu64, tar, n->offset);
	else if (rc == 1 && (strcmp(m->name, n->member) != 0 || m->type != '0'))
		rc = vfm_fail(err, VFM_EINPUT, "byte %" PRIu64 " of '%s' begins '%.200s'", n->offset, tar, m->name);
	else if (rc == 1 && m->size != n->size)
		rc = vfm_fail(err, VFM_EINPUT, "'%.200s' in '%s' has %" PRIu64 " bytes", m->name, tar, m->size);
	in->at = m->data_offset;
	in->size = n->size;
	free(m);
	return rc < 0 ? rc : 0;
}

static int open_member(struct vfm_input *in, const char *name, const struct vfm_member_name *n, struct vfm_err *err)
{
	char *tar = vfm_strfmt("%.*s", (int)n->tar_len, name);
	uint64_t tar_size = 0;
	int rc = 0;

	in->fd = vfm_open_regular(tar, &tar_size, err);
	if (in->fd < 0) {
		rc = in->fd;
		vfm_err_context(err, "the tar of '%s'", name);
	} else if ((rc = find_content(in, tar_size, n, tar, err)) < 0) {
		vfm_err_context(err, "'%s': the tar was changed or truncated after it was indexed", name);
		close(in->fd);
		in->fd = -1;
	}
	free(tar);
	return rc;
}

int vfm_input_open(struct vfm_input *in, const char *name, struct vfm_err *err)
{
	struct vfm_member_name n;

	*in = (struct vfm_input){.fd = -1};
	if (vfm_member_parse(&n, name))
		return open_member(in, name, &n, err);
	in->fd = vfm_open_regular(name, &in->size, err);
	return in->fd < 0 ? in->fd : 0;
}

/* ---- inputs that are read twice ---- */

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
