#include "io/regular.h"

#include <ctype.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"

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
	/* The name may stand for another file by now. */
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
