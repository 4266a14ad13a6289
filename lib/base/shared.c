/* shared.c - memory shared over a memfd, and futex waits on its words. */
#include "base/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const uint64_t FILE_BYTES = (uint64_t)1 << 44;

struct vfm_shared_head {
	_Atomic uint64_t next; /* first free offset */
};

int vfm_shared_make(struct vfm_shared *s, const char *name, struct vfm_err *err)
{
	int fd = memfd_create(name, MFD_CLOEXEC);

	*s = VFM_SHARED_NONE;
	if (fd < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot make shared memory");
	if (ftruncate(fd, (off_t)FILE_BYTES) < 0) {
		vfm_fail_errno(err, VFM_EENV, "cannot size shared memory (a limit on file sizes?)");
		close(fd);
		return VFM_EENV;
	}
	TRY(vfm_shared_open(s, fd, err));
	atomic_store(&s->head->next, VFM_SHARED_PAGE);
	return 0;
}

int vfm_shared_open(struct vfm_shared *s, int fd, struct vfm_err *err)
{
	void *p = mmap(NULL, VFM_SHARED_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	*s = VFM_SHARED_NONE;
	if (p == MAP_FAILED) {
		vfm_fail_errno(err, VFM_EENV, "cannot map shared memory");
		close(fd);
		return VFM_EENV;
	}
	*s = (struct vfm_shared){fd, p};
	return 0;
}

void vfm_shared_close(struct vfm_shared *s)
{
	if (s->head)
		munmap(s->head, VFM_SHARED_PAGE);
	if (s->fd >= 0)
		close(s->fd);
	*s = VFM_SHARED_NONE;
}

uint64_t vfm_shared_first(void)
{
	return VFM_SHARED_PAGE;
}

uint64_t vfm_shared_reserve(const struct vfm_shared *s, size_t bytes)
{
	return atomic_fetch_add(
		&s->head->next, (bytes + VFM_SHARED_PAGE - 1) / VFM_SHARED_PAGE * (uint64_t)VFM_SHARED_PAGE);
}

int vfm_shared_map(
	const struct vfm_shared *s, uint64_t at, size_t bytes, const char *what, void **p, struct vfm_err *err)
{
	*p = NULL;
	if (at > FILE_BYTES || bytes > FILE_BYTES - at)
		return vfm_fail(err, VFM_EENV, "no shared memory is left for %s", what);
	*p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s->fd, (off_t)at);
	if (*p == MAP_FAILED) {
		*p = NULL;
		return vfm_fail_errno(err, VFM_EENV, "cannot map %zu bytes of shared memory for %s", bytes, what);
	}
	return 0;
}

void vfm_shared_unmap(void *p, size_t bytes)
{
	if (p)
		munmap(p, bytes);
}

void vfm_shared_discard(const struct vfm_shared *s, uint64_t at, size_t bytes)
{
	fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes);
}

void vfm_word_wait(_Atomic uint32_t *word, uint32_t value, int ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

	syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, value, &t, NULL, 0);
}

void vfm_word_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
