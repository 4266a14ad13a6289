/* plugin.h - loads device backends from shared objects, so that commands start on machines without the vendor's
 * libraries.
 *
 * libvfm_NAME.so exports one symbol, `vfm_plugin`, a struct vfm_plugin, and contains its own copies of the functions of
 * this library that it uses.  The loader looks in $VFM_PLUGIN_DIR, or else in ../lib and ../lib/vfm relative to the
 * command.
 */
#ifndef VFM_DEVICE_DEV_PLUGIN_H
#define VFM_DEVICE_DEV_PLUGIN_H

#include "device/dev/dev.h"

struct vfm_transport; /* comm/device/transport.h */

/* Incremented with any change of a struct that both sides use (of device/dev, device/ops, comm/device).  The loader
 * also compares the commit. */
enum { VFM_PLUGIN_ABI = 5 };

struct vfm_plugin_opts {
	int local_rank, local_size; /* rank within this node, which selects the device */
	bool deterministic;         /* prefer algorithms with equal bits from run to run */
	/* called first in each thread of the plugin that calls functions of the command; may be NULL */
	void (*thread_start)(void);
	/* the command's vfm_warn (base/log.h); may be NULL */
	void (*warn)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
};

struct vfm_plugin {
	uint32_t abi;
	const char *name;   /* "cuda" */
	const char *commit; /* of the build */
	/* Opens the device; NULL with VFM_EENV, as in "no CUDA device: no NVIDIA driver (libcuda.so.1)". */
	struct vfm_dev *(*open)(const struct vfm_plugin_opts *o, struct vfm_err *err);
	/* "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9": works without a device. */
	void (*versions)(char *buf, size_t len);
	const struct vfm_transport *transport;
};

/* Loads a plugin once and keeps it.  Returns NULL with VFM_EENV, which names the folders or the mismatch. */
const struct vfm_plugin *vfm_plugin_load(const char *name, struct vfm_err *err);
/* Returns whether a folder contains the plugin's file; does not open it. */
bool vfm_plugin_exists(const char *name);

/* Returns the device of this rank, 0 .. visible-1.  Each rank of a node has its own device.  VFM_EENV: no device is
 * visible; VFM_EUSAGE: there are more ranks than devices. */
struct vfm_plugin_choice {
	const char *what; /* "CUDA" */
	int visible;
	int local_rank, local_size;
	bool bound; /* the launcher may have given each rank its own devices */
	bool share; /* ranks may share a device: for tests of correctness */
};
int vfm_plugin_choose(const struct vfm_plugin_choice *c, struct vfm_err *err);

#endif
