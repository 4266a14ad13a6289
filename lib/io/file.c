/* file.c - temporary files that are renamed at commit, locks, whole reads and writes, and removal of trees. */
#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

char *vfm_dir_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return vfm_strdup(".");
	if (slash == path)
		return vfm_strdup("/");
	return vfm_strfmt("%.*s", (int)(slash - path), path);
}

bool vfm_name_ends(const char *name, const char *end)
{
	size_t n = strlen(name), m = strlen(end);

	return n > m && !strcasecmp(name + n - m, end);
}

char *vfm_first_in(const char *folder, const char *const *names)
{
	for (; *names; names++) {
		char *path = vfm_strfmt("%s/%s", folder, *names);

		if (access(path, F_OK) == 0)
			return path;
		free(path);
	}
	return NULL;
}

/* ---- locks ---- */

#define LOCK_S 10.0

bool vfm_lock(int fd, const volatile sig_atomic_t *stop)
{
	double until = vfm_now() + LOCK_S;

	while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
		if (vfm_now() > until || (stop && *stop))
			return false;
		nanosleep(&(struct timespec){0, 20000000}, NULL);
	}
	return true;
}

/* ---- temporary files ---- */

bool vfm_is_same_file(int fd, const char *path)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Removes the file that a killed process left: no process holds its lock.  On a file system without locks, no file is
 * known to be a leftover. */
static bool remove_leftover(const char *tmp)
{
	int fd = open(tmp, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	bool dead = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && vfm_is_same_file(fd, tmp) && unlink(tmp) == 0;

	if (fd >= 0)
		close(fd);
	return dead;
}

/* Creates and locks the file `tmp`.  Returns -1 with EEXIST if a living process holds it. */
static int create_locked(const char *tmp)
{
	for (int attempt = 0; attempt < 100; attempt++) {
		int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

		if (fd < 0 && errno != EEXIST)
			return -1;
		if (fd < 0 && !remove_leftover(tmp))
			break;
		if (fd < 0)
			continue;
		/* Before this lock, another process may have taken the file for a leftover. */
		if ((flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) && vfm_is_same_file(fd, tmp))
			return fd;
		close(fd);
	}
	errno = EEXIST;
	return -1;
}

/* Creates the temporary file of path, in the same folder, and sets *tmp to its name, which the caller frees.  Returns a
 * descriptor that holds the lock until it is closed, or -1 with errno.  The rename comes before the close. */
static int create_temp(const char *path, char **tmp)
{
	static atomic_uint counter;
	char *dir = vfm_dir_of(path);
	int fd;

	*tmp = vfm_strfmt("%s" VFM_TEMP_SUFFIX, path);
	fd = create_locked(*tmp);
	for (int attempt = 0; fd < 0 && (errno == EEXIST || errno == ENAMETOOLONG) && attempt < 100; attempt++) {
		unsigned n = atomic_fetch_add(&counter, 1);
		bool too_long = errno == ENAMETOOLONG;

		free(*tmp);
		*tmp = too_long ? vfm_strfmt("%s/" VFM_TEMP_SUFFIX ".%ld.%u", dir, (long)getpid(), n)
				: vfm_strfmt("%s" VFM_TEMP_SUFFIX ".%ld.%u", path, (long)getpid(), n);
		fd = create_locked(*tmp);
	}
	free(dir);
	if (fd < 0) {
		free(*tmp);
		*tmp = NULL;
	}
	return fd;
}

/* Calls `remove_path` for the paths in a folder whose names contain `word`, or with `prefix` begin with it. */
static void remove_named(const char *dir, const char *word, bool prefix, bool (*remove_path)(const char *path))
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		const char *at = strstr(e->d_name, word);
		char *path;

		if (!at || (prefix && at != e->d_name))
			continue;
		path = vfm_strfmt("%s/%s", dir, e->d_name);
		remove_path(path);
		free(path);
	}
	if (d)
		closedir(d);
}

void vfm_temp_sweep(const char *dir)
{
	remove_named(dir, VFM_TEMP_SUFFIX, false, remove_leftover);
}

/* ---- temporary folders ---- */

/* Opens and locks PATH/lock.  Returns -1 if another process holds it, or has removed it meanwhile. */
static int lock_dir(const char *path, int flags)
{
	char *name = vfm_strfmt("%s/lock", path);
	int fd = open(name, O_RDWR | O_CLOEXEC | flags, 0600);
	struct stat st;

	free(name);
	if (fd < 0)
		return -1;
	/* on a file system without locks a new folder is used unlocked, and no old one is removed */
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 || (flags & O_CREAT && errno != EWOULDBLOCK))
		if (fstat(fd, &st) == 0 && st.st_nlink)
			return fd;
	close(fd);
	return -1;
}

/* Removes a folder that no process holds.  A process that was killed before it locked its folder left it empty. */
static bool remove_dir(const char *path)
{
	struct stat st;
	int fd;

	if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != getuid())
		return false;
	if (rmdir(path) == 0)
		return true;
	fd = lock_dir(path, 0);
	if (fd < 0)
		return false;
	vfm_rm_rf(path, NULL);
	close(fd);
	return true;
}

void vfm_temp_dir_sweep(const char *dir, const char *prefix)
{
	remove_named(dir, prefix, true, remove_dir);
}

int vfm_temp_dir_make(const char *dir, const char *prefix, char **path, int *lock, struct vfm_err *err)
{
	*path = NULL;
	for (int attempt = 0; attempt < 10; attempt++) { /* another process may sweep a new folder */
		char *p = vfm_strfmt("%s/%sXXXXXX", dir, prefix);
		int why;

		if (!mkdtemp(p)) {
			free(p);
			break;
		}
		*lock = lock_dir(p, O_CREAT);
		if (*lock >= 0) {
			*path = p;
			return 0;
		}
		why = errno;
		rmdir(p); /* needs no descriptor */
		free(p);
		errno = why;
	}
	*lock = -1;
	return vfm_fail_errno(err, VFM_EENV, "cannot make a folder in '%s'", dir);
}

/* ---- atomic writes ---- */

int vfm_atomic_open(struct vfm_atomic *a, const char *path, struct vfm_err *err)
{
	struct stat st;
	char real[PATH_MAX];
	bool exists = stat(path, &st) == 0;
	int fd;

	*a = (struct vfm_atomic){0};
	if (exists && S_ISDIR(st.st_mode))
		return vfm_fail(err, VFM_EENV, "cannot write '%s': Is a directory", path);
	if (exists && !S_ISREG(st.st_mode)) {
		fd = open(path, O_WRONLY | O_CLOEXEC);
		a->path = vfm_strdup(path);
	} else {
		/* Replaces the target of a link, not the link. */
		a->path = vfm_strdup(exists && realpath(path, real) ? real : path);
		fd = create_temp(a->path, &a->tmp);
		if (fd >= 0 && exists && fchmod(fd, st.st_mode & 07777) != 0 && errno != EPERM) {
			vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
			vfm_atomic_abort(a);
			close(fd);
			return VFM_EENV;
		}
	}
	a->f = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (!a->f) {
		vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
		vfm_atomic_abort(a);
		if (fd >= 0)
			close(fd);
		return VFM_EENV;
	}
	return 0;
}

/* The caller closes the file afterwards: without its lock, the name may already be that of another writer's file. */
static void remove_temp(struct vfm_atomic *a)
{
	if (a->tmp)
		unlink(a->tmp);
	free(a->tmp);
	a->tmp = NULL;
}

void vfm_atomic_abort(struct vfm_atomic *a)
{
	remove_temp(a);
	if (a->f)
		fclose(a->f);
	free(a->path);
	*a = (struct vfm_atomic){0};
}

int vfm_atomic_commit(struct vfm_atomic *a, struct vfm_err *err)
{
	bool renamed = false;
	FILE *f = a->f;
	int rc = 0, why = 0;

	/* stdio does not keep the reason of an earlier failure; the flush usually fails with it again. */
	errno = 0;
	if (fflush(f) != 0 || ferror(f))
		why = errno ? errno : EIO;
	if (!why && a->tmp && !a->unsynced && fsync(fileno(f)) != 0)
		why = errno;
	if (!why && a->tmp) {
		renamed = rename(a->tmp, a->path) == 0;
		why = renamed ? 0 : errno;
	}
	if (!renamed)
		remove_temp(a);
	a->f = NULL;
	if (fclose(f) != 0 && !why) /* last: it releases the lock of the temporary file */
		why = errno;
	if (renamed) {
		char *dir = vfm_dir_of(a->path);

		free(a->tmp);
		a->tmp = NULL;
		rc = a->unsynced ? 0 : vfm_fsync_dir(dir, err);
		free(dir);
	}
	if (why) {
		errno = why;
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", a->path);
	}
	vfm_atomic_abort(a);
	return rc;
}

static int write_whole(const char *path, const void *data, size_t len, bool unsynced, struct vfm_err *err)
{
	struct vfm_atomic a;

	TRY(vfm_atomic_open(&a, path, err));
	a.unsynced = unsynced;
	if (len && fwrite(data, 1, len, a.f) != len) {
		vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
		vfm_atomic_abort(&a);
		return VFM_EENV;
	}
	return vfm_atomic_commit(&a, err);
}

int vfm_write_file(const char *path, const void *data, size_t len, struct vfm_err *err)
{
	return write_whole(path, data, len, false, err);
}

int vfm_write_unsynced(const char *path, const void *data, size_t len, struct vfm_err *err)
{
	return write_whole(path, data, len, true, err);
}

int vfm_sync_folder(const char *dir, struct vfm_err *err)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;

	if (fd < 0 || syncfs(fd) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot sync '%s'", dir);
	if (fd >= 0)
		close(fd);
	return rc;
}

int vfm_read_all(int fd, const char *name, size_t max, char **data, size_t *len, struct vfm_err *err)
{
	size_t cap = 0, n = 0;
	char *buf = NULL;
	int rc = VFM_EINPUT;
	ssize_t got;

	*data = NULL;
	*len = 0;
	for (;;) {
		vfm_grow(&buf, &cap, n + 65536, 1);
		got = read(fd, buf + n, cap - n - 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		n += (size_t)got;
		if (n > max) {
			vfm_fail(err, VFM_EINPUT, "'%s' is too large (more than %zu bytes)", name, max);
			goto fail;
		}
	}
	if (got < 0) {
		rc = vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", name);
		goto fail;
	}
	buf[n] = 0;
	*data = buf;
	*len = n;
	return 0;
fail:
	free(buf);
	return rc;
}

int vfm_read_file(const char *path, size_t max, char **data, size_t *len, struct vfm_err *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), rc;

	*data = NULL;
	*len = 0;
	if (fd < 0)
		return vfm_fail_errno(err, VFM_EINPUT, "cannot open '%s'", path);
	rc = vfm_read_all(fd, path, max, data, len, err);
	close(fd);
	return rc;
}

int vfm_mkdir_p(const char *path, struct vfm_err *err)
{
	char *p = vfm_strdup(path), *s = p;
	struct stat st;
	int rc = 0;

	while (rc == 0) {
		char was;

		s += strspn(s, "/");
		s += strcspn(s, "/");
		was = *s;
		*s = 0;
		if (*p && mkdir(p, 0777) != 0) {
			int why = errno;

			/* It may exist although mkdir fails with EROFS or EACCES. */
			if (stat(p, &st) != 0) {
				errno = why;
				rc = vfm_fail_errno(err, VFM_EENV, "cannot make folder '%s'", path);
			} else if (!S_ISDIR(st.st_mode)) {
				rc = vfm_fail(err, VFM_EENV, "cannot make folder '%s': '%s' is not a folder", path, p);
			}
		}
		*s = was;
		if (!was)
			break;
	}
	free(p);
	return rc;
}

int vfm_fsync_dir(const char *path, struct vfm_err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot open folder '%s'", path);
	/* Some network file systems return EINVAL, since they cannot sync a folder. */
	if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) {
		vfm_fail_errno(err, VFM_EENV, "cannot sync folder '%s'", path);
		close(fd);
		return VFM_EENV;
	}
	close(fd);
	return 0;
}

static int rm_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

int vfm_rm_rf(const char *path, struct vfm_err *err)
{
	struct stat st;

	if (lstat(path, &st) != 0 && errno == ENOENT)
		return 0;
	if (nftw(path, rm_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
		return vfm_fail_errno(err, VFM_EENV, "cannot remove '%s'", path);
	return 0;
}

int vfm_full_pread(int fd, void *buf, size_t len, uint64_t off, const char *name, struct vfm_err *err)
{
	char *p = buf;

	if (off > INT64_MAX || len > INT64_MAX - off)
		return vfm_fail(err, VFM_EINPUT, "cannot read '%s': offset out of range", name);
	while (len > 0) {
		ssize_t n = pread(fd, p, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", name);
		if (n == 0)
			return vfm_fail(err, VFM_EINPUT,
				"'%s' is truncated: it ends at byte %llu, %zu more were expected", name,
				(unsigned long long)off, len);
		p += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

int vfm_unlinked_temp(FILE **f, struct vfm_err *err)
{
	const char *dir = getenv("TMPDIR");

	return vfm_unlinked_in(dir && *dir ? dir : "/tmp", f, err);
}

int vfm_unlinked_in(const char *dir, FILE **f, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/vfm-temp.XXXXXX", dir);
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), rc = 0;

	if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) { /* NFS and others have no O_TMPFILE */
		fd = mkostemp(path, O_CLOEXEC);
		if (fd >= 0)
			unlink(path);
	}
	*f = fd >= 0 ? fdopen(fd, "w+") : NULL;
	if (!*f) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot create '%s'", path);
		if (fd >= 0)
			close(fd);
	}
	free(path);
	return rc;
}
