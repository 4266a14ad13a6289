/* plugin.h - devices that live in a shared object of their own, so that a command starts where their libraries are not.
 *
 * libvfm_NAME.so exports one symbol, `vfm_plugin`, a struct vfm_plugin.  It is looked for in $VFM_PLUGIN_DIR, else
 * beside the command (DIR/../lib, DIR/../lib/vfm).  It carries its own copies of what it uses of this library.
 */
#ifndef VFM_DEV_PLUGIN_H
#define VFM_DEV_PLUGIN_H

#include "dev/dev.h"

struct vfm_wire; /* comm/wire.h */

/* Changes with any struct that both sides see (dev.h, ops.h, tensor.h, wire.h); the commit is compared, too. */
enum { VFM_PLUGIN_ABI = 2 };

struct vfm_plugin_opts {
	int local_rank, local_size; /* of the ranks on this node: which of the node's devices is mine */
	bool deterministic;         /* the same run gives the same bits, where that costs something */
	/* called first in every thread of the plugin that calls functions of the command; may be NULL */
	void (*thread_start)(void);
	/* the command's vfm_warn (base/log.h); may be NULL */
	void (*warn)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
};

struct vfm_plugin {
	uint32_t abi;
	const char *name;   /* "cuda" */
	const char *commit; /* of the build */
	/* NULL: VFM_EENV, "no CUDA device: no NVIDIA driver (libcuda.so.1)". */
	struct vfm_dev *(*open)(const struct vfm_plugin_opts *o, struct vfm_err *err);
	/* "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9": works without a device. */
	void (*versions)(char *buf, size_t len);
	const struct vfm_wire *wire;
};

/* Opened once and kept.  NULL: VFM_EENV, saying where it was looked for, or what of it did not fit. */
const struct vfm_plugin *vfm_plugin_load(const char *name, struct vfm_err *err);
/* Whether there is a file of that name where a plugin is looked for; it is not opened. */
bool vfm_plugin_there(const char *name);

/* Which of the devices that a process sees is its own: a number in 0 .. visible-1.  Each rank of a node has one to
 * itself. VFM_EENV: there is none; VFM_EUSAGE: there are more ranks than devices. */
struct vfm_plugin_choice {
	const char *what; /* "CUDA" */
	int visible;
	int local_rank, local_size;
	bool bound; /* the launcher may have given each rank devices of its own */
	bool share; /* ranks may share a device: for tests of correctness */
};
int vfm_plugin_choose(const struct vfm_plugin_choice *c, struct vfm_err *err);

#endif
