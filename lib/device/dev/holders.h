/* holders.h - counts device memory by the `what` of vfm_dev_alloc, and formats the out-of-memory message. */
#ifndef VFM_DEVICE_DEV_HOLDERS_H
#define VFM_DEVICE_DEV_HOLDERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "device/dev/dev.h"
#include "io/names.h"

/* `= {0}` is empty.  Names that differ only in digits ("blocks.3.fc1") count as one.  Not thread-safe. */
struct vfm_holders {
	struct vfm_holder {
		char name[56];
		uint64_t bytes;
	} * v; /* [n] */
	size_t n, cap;
	struct vfm_names names; /* their numbers are indices into v */
};
/* Adds bytes to the name `what` and returns its number for vfm_holders_sub. */
uint32_t vfm_holders_add(struct vfm_holders *h, const char *what, uint64_t bytes);
void vfm_holders_sub(struct vfm_holders *h, uint32_t id, uint64_t bytes);
void vfm_holders_release(struct vfm_holders *h);

struct vfm_oom {
	const char *device; /* "NVIDIA H200" */
	const char *what;   /* purpose of the allocation, "activations" */
	uint64_t bytes;     /* size of the allocation */
	uint64_t in_use;    /* allocated before */
	uint64_t total;     /* of the device */
	uint64_t others;    /* held outside of this pool: libraries, other processes; 0: unknown */
	const struct vfm_holders *holders;
	const struct vfm_dev_oom_hints *oom_hints; /* of the device */
};
/* Writes one sentence: "out of memory on NVIDIA H200: 1.50 GiB for activations do not fit in addition to the 138.10 GiB
 * in use, of 139.80 GiB (activations 61.00 GiB, parameters 42.00 GiB, gradients 21.00 GiB); approximate savings:
 * train.recompute=full (55.00 GiB), train.recompute=light (30.50 GiB)".  Omits settings that save less than 1/200 of
 * the device. */
void vfm_oom_sentence(const struct vfm_oom *o, char *buf, size_t len);

/* Appends the last part of that sentence: "; approximate savings: ...". */
void vfm_oom_add_hints(const struct vfm_dev_oom_hints *a, uint64_t total, struct vfm_buf *b);

#endif
