/* cuda_dev.c - opens a GPU with its driver functions, and keeps its errors and faults. */
#include "device/cuda/cuda_dev.h"

#include <cublasLt.h>
#include <cudnn_version.h>
#include <errno.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/task.h"
#include "device/cuda/attn.h"
#include "device/cuda/cuda_mem.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"
#include "device/cuda/gemm.h"
#include "io/file.h"
#include "spec/cost/hw.h"

/* Some packages of CUDA lack these headers; VFM_NVTX then has no effect. */
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else
#define nvtxRangePushA(name) ((void)(name))
#define nvtxRangePop()       ((void)0)
#endif

size_t cudnnGetVersion(void); /* as in cudnn.h, which includes much else */

/* ---- errors ---- */

/* The context belongs to the process, and so does a sticky error: the first one is stored and reported by all later
 * calls. */
static pthread_mutex_t broken_lock = PTHREAD_MUTEX_INITIALIZER;
static char broken_by[64];
static atomic_bool broken;

bool vfm_cuda_broken(void)
{
	return atomic_load(&broken);
}

/* Sticky errors: every later call fails. */
static bool breaks(cudaError_t e)
{
	switch (e) {
	case cudaErrorIllegalAddress:
	case cudaErrorLaunchFailure:
	case cudaErrorLaunchTimeout:
	case cudaErrorAssert:
	case cudaErrorHardwareStackError:
	case cudaErrorIllegalInstruction:
	case cudaErrorMisalignedAddress:
	case cudaErrorInvalidAddressSpace:
	case cudaErrorInvalidPc:
	case cudaErrorECCUncorrectable:
	case cudaErrorNvlinkUncorrectable:
	case cudaErrorContextIsDestroyed:
	case cudaErrorTensorMemoryLeak:
	case cudaErrorUnknown:
		return true;
	default:
		return false;
	}
}

const struct vfm_cuda *vfm_cuda_device(const struct vfm_dev *d)
{
	return (const struct vfm_cuda *)d;
}

int vfm_cuda_check(cudaError_t e, const char *what, struct vfm_err *err)
{
	char first[sizeof(broken_by)];

	if (e == cudaSuccess)
		return 0;
	cudaGetLastError(); /* clears the error, which is reported here */
	if (!breaks(e))
		return vfm_fail(err, VFM_EENV, "%s: %s", what, cudaGetErrorString(e));
	pthread_mutex_lock(&broken_lock);
	if (!broken_by[0])
		snprintf(broken_by, sizeof(broken_by), "%s", what);
	atomic_store(&broken, true);
	memcpy(first, broken_by, sizeof(first));
	pthread_mutex_unlock(&broken_lock);
	if (strcmp(first, what) == 0)
		return vfm_fail(err, VFM_EENV, "%s: %s (here or in an earlier operation; VFM_CUDA_SYNC=1 finds it)",
			what, cudaGetErrorString(e));
	return vfm_fail(err, VFM_EENV, "%s: %s (first reported by %s; VFM_CUDA_SYNC=1 finds the cause)", what,
		cudaGetErrorString(e), first);
}

int vfm_cuda_check_drv(struct vfm_cuda *c, CUresult e, const char *what, struct vfm_err *err)
{
	const char *s = NULL;

	if (e == CUDA_SUCCESS)
		return 0;
	/* The runtime uses the numbers of the driver for sticky errors. */
	if (breaks((cudaError_t)e))
		return vfm_cuda_check((cudaError_t)e, what, err);
	if (!c->sys->drv.error_string || c->sys->drv.error_string(e, &s) != CUDA_SUCCESS || !s)
		s = "an unknown error of the driver";
	return vfm_fail(err, VFM_EENV, "%s: %s", what, s);
}

int vfm_cuda_launched(struct vfm_stream *s, const char *op, struct vfm_err *err)
{
	TRY(vfm_cuda_check(cudaGetLastError(), op, err));
	if (!vfm_cuda_of(s)->sync)
		return 0;
	TRY(vfm_cuda_check(cudaStreamSynchronize(vfm_cuda_stream(s)), op, err));
	return vfm_faults_check(vfm_cuda_of(s)->sys->faults, err);
}

int vfm_cuda_use(struct vfm_cuda *c, struct vfm_err *err)
{
	static _Thread_local int mine; /* 1 + the device selected by this thread */

	if (mine == c->ordinal + 1)
		return 0;
	TRY(vfm_cuda_check(cudaSetDevice(c->ordinal), "cannot use the CUDA device", err));
	mine = c->ordinal + 1;
	return 0;
}

/* ---- for ops ---- */

/* Grows only.  Freed memory may be allocated again in the order of the compute stream; on another stream the host
 * waits. */
void *vfm_cuda_ws(struct vfm_stream *stream, size_t bytes, struct vfm_err *err)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);
	size_t want = bytes + bytes / 8 + 256;

	if (s->ws && s->ws_bytes >= bytes)
		return s->ws;
	if (s->ws) {
		if (s->async && vfm_cuda_refuse(vfm_cuda_of(stream), s->st, "more scratch", true, err) < 0)
			return NULL;
		if (s->async && vfm_cuda_check(cudaStreamSynchronize(s->st), "scratch", err) < 0)
			return NULL;
		vfm_dev_free(stream, s->ws, s->ws_bytes);
		s->ws = NULL;
		s->ws_bytes = 0;
	}
	s->ws = vfm_dev_alloc(stream, want, "scratch of an operation", err);
	if (!s->ws && bytes)
		s->ws = vfm_dev_alloc(stream, want = bytes, "scratch of an operation", err);
	s->ws_bytes = s->ws ? want : 0;
	return s->ws;
}

int vfm_cuda_sms(struct vfm_stream *s)
{
	return vfm_cuda_of(s)->n_sm;
}

int vfm_cuda_units(struct vfm_stream *s)
{
	return s->units;
}

int vfm_cuda_most_shared(struct vfm_stream *s)
{
	return vfm_cuda_of(s)->most_shared;
}

uint64_t *vfm_cuda_fault(struct vfm_stream *s, enum vfm_op_id op)
{
	return vfm_cuda_of(s)->sys->faults + op;
}

static int faults_new(struct vfm_cuda_sys *y, struct vfm_err *err)
{
	void *p = NULL;

	TRY(vfm_cuda_check(
		cudaHostAlloc(&p, VFM_OP_N * sizeof(*y->faults), cudaHostAllocPortable | cudaHostAllocMapped),
		"pinned memory", err));
	y->faults = memset(p, 0, VFM_OP_N * sizeof(*y->faults));
	return 0;
}

/* ---- the user's folder, ranges for profilers ---- */

/* Creates a folder and its parents. */
static bool private_dir(const char *dir)
{
	char *above = vfm_strdup(dir), *slash = strrchr(above, '/');
	bool ok = true;

	if (slash && slash != above) {
		*slash = '\0';
		ok = vfm_mkdir_p(above, NULL) == 0;
	}
	free(above);
	return ok && (mkdir(dir, 0700) == 0 || (errno == EEXIST && access(dir, W_OK) == 0));
}

char *vfm_cuda_cache_path(const char *file)
{
	const char *own = getenv("VFM_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char *dir, *path;

	if (own && *own)
		dir = vfm_strdup(own);
	else if (xdg && *xdg == '/')
		dir = vfm_strfmt("%s/vfm", xdg);
	else if (home && *home == '/')
		dir = vfm_strfmt("%s/.cache/vfm", home);
	else
		return NULL;
	path = private_dir(dir) ? vfm_strfmt("%s/%s", dir, file) : NULL;
	free(dir);
	return path;
}

static bool ranges;

void vfm_cuda_range_push(const char *name)
{
	if (ranges)
		nvtxRangePushA(name);
}

void vfm_cuda_range_pop(void)
{
	if (ranges)
		nvtxRangePop();
}

/* ---- opening ---- */

static void dev_free(struct vfm_dev *d)
{
	struct vfm_cuda *c = (struct vfm_cuda *)d;

	if (!c)
		return;
	vfm_cuda_use(c, NULL);
	cudaDeviceSynchronize();
	if (c->gemm)
		vfm_cuda_gemm_free(c->gemm);
	if (c->attn)
		vfm_cuda_attn_close(c->attn);
	if (c->sys) {
		vfm_cuda_graphs_free(c->sys->graphs);
		vfm_cuda_mem_free(c->sys->mem);
		vfm_ranges_release(&c->sys->host);
		cudaFreeHost(c->sys->faults);
		pthread_mutex_destroy(&c->sys->lock);
		free(c->sys);
	}
	free(c);
}

static struct vfm_dev_table table = {
	.name = "cuda",
	.alloc = vfm_cuda_alloc,
	.free = vfm_cuda_free,
	.alloc_host = vfm_cuda_alloc_host,
	.free_host = vfm_cuda_free_host,
	.to_device = vfm_cuda_to_device,
	.to_host = vfm_cuda_to_host,
	.zero = vfm_cuda_zero,
	.stream_new = vfm_cuda_stream_new,
	.stream_free = vfm_cuda_stream_free,
	.stream_sync = vfm_cuda_stream_sync,
	.host_call = vfm_cuda_host_call,
	.event_new = vfm_cuda_event_new,
	.event_new_timed = vfm_cuda_event_new_timed,
	.event_free = vfm_cuda_event_free,
	.event_record = vfm_cuda_event_record,
	.event_wait = vfm_cuda_event_wait,
	.event_sync = vfm_cuda_event_sync,
	.event_passed = vfm_cuda_event_passed,
	.event_elapsed = vfm_cuda_event_elapsed,
	.graph_begin = vfm_cuda_graph_begin,
	.graph_end = vfm_cuda_graph_end,
	.trim = vfm_cuda_trim,
	.dev_free = dev_free,
};

/* Returns the number of devices of this process, or an error that states why there is none. */
static int count_devices(int *n, struct vfm_err *err)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	cudaError_t e;
	int driver = 0;

	*n = 0;
	e = cudaGetDeviceCount(n);
	cudaGetLastError();
	if (e == cudaSuccess && *n > 0)
		return 0;
	if (e == cudaErrorInsufficientDriver) {
		if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
			return vfm_fail(err, VFM_EENV, "no CUDA device: no NVIDIA driver (libcuda.so.1)");
		return vfm_fail(err, VFM_EENV, "no CUDA device: the driver is for CUDA %d.%d, this build needs %d.%d",
			driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
	}
	if (e == cudaSuccess || e == cudaErrorNoDevice) {
		if (visible)
			return vfm_fail(err, VFM_EENV, "no CUDA device: none is visible (CUDA_VISIBLE_DEVICES is '%s')",
				visible);
		return vfm_fail(err, VFM_EENV, "no CUDA device: the driver reports none");
	}
	return vfm_fail(err, VFM_EENV, "no CUDA device: %s", cudaGetErrorString(e));
}

static bool is_set(const char *name)
{
	const char *v = getenv(name);

	return v && strcmp(v, "1") == 0;
}

static int choose_device(const struct vfm_plugin_opts *o, int *ordinal, struct vfm_err *err)
{
	struct vfm_task task;
	struct vfm_plugin_choice c = {.what = "CUDA",
		.local_rank = o->local_rank,
		.local_size = o->local_size,
		.bound = vfm_task_read(&task, NULL) == 0 && task.count > 1,
		.share = is_set("VFM_CUDA_SHARE")};
	int rc;

	TRY(count_devices(&c.visible, err));
	rc = vfm_plugin_choose(&c, err);
	if (rc >= 0)
		*ordinal = rc;
	return rc < 0 ? rc : 0;
}

/* NULL if the driver lacks the function */
static void entry(const char *name, unsigned version, void *fn)
{
	enum cudaDriverEntryPointQueryResult found;
	void *p = NULL;

	if (cudaGetDriverEntryPointByVersion(name, &p, version, cudaEnableDefault, &found) != cudaSuccess)
		cudaGetLastError();
	else if (found == cudaDriverEntryPointSuccess)
		memcpy(fn, &p, sizeof(p));
}

static int driver_init(struct vfm_cuda_driver *v, struct vfm_err *err)
{
#define X(field, name, version) entry("cu" #name, version, &v->field);
	VFM_CUDA_DRIVER(X)
#undef X
	if (!v->device_get || !v->attribute || !v->write_value || !v->wait_value)
		return vfm_fail(err, VFM_EENV, "no CUDA device: the driver lacks functions of CUDA 11.7");
	return 0;
}

void vfm_cuda_versions(char *buf, size_t len)
{
	unsigned lt = (unsigned)cublasLtGetVersion(), dnn = (unsigned)cudnnGetVersion();
	int cuda = 0, nccl = 0;

	if (cudaRuntimeGetVersion(&cuda) != cudaSuccess)
		cuda = CUDART_VERSION;
	ncclGetVersion(&nccl);
	snprintf(buf, len, "CUDA %d.%d, cuBLASLt %u.%u.%u, cuDNN %u.%u.%u, NCCL %d.%d.%d", cuda / 1000,
		cuda % 1000 / 10, lt / 10000, lt / 100 % 100, lt % 100, dnn / 10000, dnn / 100 % 100, dnn % 100,
		nccl / 10000, nccl / 100 % 100, nccl % 100);
}

/* Returns the bandwidth of the memory from its clock and its bus, at two transfers a cycle; 0 if it is unknown. */
static double memory_gb_s(int ordinal)
{
	int khz = 0, bits = 0;

	if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, ordinal) != cudaSuccess ||
		cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, ordinal) != cudaSuccess)
		cudaGetLastError();
	return 2e3 * khz * (bits / 8.0) / 1e9;
}

static int describe_device(struct vfm_cuda *c, struct vfm_err *err)
{
	struct cudaDeviceProp p;
	char libs[64], all[512];
	int driver = 0;

	TRY(vfm_cuda_check(cudaGetDeviceProperties(&p, c->ordinal), "the properties of the CUDA device", err));
	TRY(vfm_cuda_check(cudaDriverGetVersion(&driver), "the version of the driver", err));
	c->sm = p.major * 10 + p.minor;
	c->n_sm = p.multiProcessorCount;
	c->most_shared = (int)p.sharedMemPerBlockOptin;
	c->dev.mem_total = (int64_t)p.totalGlobalMem;
	c->dev.async = true;
	snprintf(c->dev.name, sizeof(c->dev.name), "%.63s", p.name);
	/* Deterministic products do not depend on what overlaps them. */
	c->dev.side = (struct vfm_dev_side){.units = c->n_sm / 4,
		.flops_per_byte = c->deterministic
			? 0
			: vfm_gemm_side_flops(c->n_sm, vfm_hw_peak(c->dev.name, VFM_BF16), memory_gb_s(c->ordinal))};
	vfm_cuda_versions(libs, sizeof(libs));
	snprintf(all, sizeof(all), "%.24s %02x:%02x, %d SMs, %.0f GiB, driver %d.%d, %s", p.name,
		(unsigned)p.pciBusID & 0xff, (unsigned)p.pciDeviceID & 0xff, c->n_sm,
		(double)p.totalGlobalMem / (1 << 30), driver / 1000, driver % 1000 / 10, libs);
	snprintf(c->dev.descr, sizeof(c->dev.descr), "%.127s", all);
	if (c->sm < 80)
		return vfm_fail(err, VFM_EENV, "no CUDA device: %s has compute capability %d.%d, 8.0 is needed", p.name,
			p.major, p.minor);
	return 0;
}

/* The driver reads this at start: streams that wait for each other must not share a hardware queue. */
static void queues(void)
{
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

struct vfm_dev *vfm_cuda_open(const struct vfm_plugin_opts *o, struct vfm_err *err)
{
	struct vfm_cuda *c = vfm_calloc(1, sizeof(*c));
	struct vfm_cuda_sys *y = c->sys = vfm_calloc(1, sizeof(*y));
	int rc;

	queues();
	c->dev.t = &table;
	c->deterministic = o->deterministic;
	c->local_size = o->local_size;
	c->warn = o->warn;
	c->sync = is_set("VFM_CUDA_SYNC");
	ranges = is_set("VFM_NVTX");
	table.ops = vfm_cuda_ops_table(ranges);
	pthread_mutex_init(&y->lock, NULL);
	y->thread_start = o->thread_start;
	TRY_OUT(choose_device(o, &c->ordinal, err));
	TRY_OUT(vfm_cuda_use(c, err));
	TRY_OUT(describe_device(c, err));
	TRY_OUT(driver_init(&y->drv, err));
	TRY_OUT(faults_new(y, err));
	vfm_cuda_load_kernels();
	y->mem = vfm_cuda_mem_new(c, err);
	rc = y->mem ? 0 : VFM_EENV;
out:
	if (rc == 0)
		return &c->dev;
	if (y->faults)
		cudaFreeHost(y->faults);
	pthread_mutex_destroy(&y->lock);
	free(y);
	free(c);
	return NULL;
}
