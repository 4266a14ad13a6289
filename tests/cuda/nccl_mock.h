/* nccl_mock.h - a mock of NCCL and of the few CUDA functions that lib/comm/device/comm_nccl.c calls, over shared memory
 * (shm_transport.h) and CPU devices.  It has the properties of NCCL that can deadlock or corrupt a job:
 *
 *   - Communicators must be blocking.  Init, split and finalize block until all ranks come, and nothing interrupts
 * them.
 *   - The first collective of a communicator, and the first message of each pair, block the host until the other ranks
 *     come.  ncclCommAbort from another thread ends that wait with an error.
 *   - The end of an abort waits for all work of the device, also for that of other communicators.  Aborts within one
 *     group call end together.
 *   - A communicator that was aborted or destroyed must not be used.
 *
 * The mock ends the process with a message on a violation.  With `mock_stub` calls return at once.
 */
#ifndef TESTS_CUDA_NCCL_MOCK_H
#define TESTS_CUDA_NCCL_MOCK_H

#include <nccl.h>

#include "base/clock.h"
#include "device/cuda/cuda_dev.h"
#include "device/cuda/cuda_mem.h"
#include "device/cuda/cuda_stream.h"
#include "shm_transport.h"

enum { MOCK_MAGIC = 0x4e43434c, MOCK_GROUP = 64 };

struct ncclComm {
	int magic;
	struct vfm_transport_comm *w;
	bool connected;
	bool finalized;
	bool met[SHMT_RANKS][2]; /* peers that this rank has received from, sent to */
	atomic_bool aborted;
	struct ncclComm *next; /* aborted earlier */
};

/* Of all ranks: how many have come to the first collective; which sides of a pair have come to their first message. */
struct mock_meetings {
	_Atomic int came[SHMT_COMMS];
	_Atomic int side[SHMT_COMMS][SHMT_RANKS][SHMT_RANKS][2]; /* [from][to][send] */
};

static struct mock_meetings *mock_meet;
static bool mock_stub;
static struct ncclComm *mock_dead;  /* aborted; never freed, since threads may still be in their calls */
static int mock_calls, mock_aborts; /* collectives and message groups; aborted communicators */
static struct vfm_cuda mock_cuda;   /* what comm_nccl.c reads of its device */
static _Thread_local int mock_depth, mock_ending;
static _Thread_local struct {
	struct ncclComm *c;
	struct vfm_stream *s;
	struct vfm_transport_msg m[MOCK_GROUP];
	int n;
} mock_group;

/* nccl.h declares them without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

/* To be called before the forks. */
static void mock_make(void)
{
	shmt_make();
	if (mock_meet)
		munmap(mock_meet, sizeof(*mock_meet));
	mock_meet = mmap(
		NULL, sizeof(*mock_meet), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mock_meet == MAP_FAILED)
		abort();
}

/* ---- CUDA ---- */

cudaError_t cudaSetDevice(int device)
{
	return device ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
	*device = 0;
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
	(void)device;
	memset(p, 0, sizeof(*p));
	p->pciBusID = shmt_same_device ? 0 : (int)getpid();
	return cudaSuccess;
}

const struct vfm_cuda *vfm_cuda_device(const struct vfm_dev *d)
{
	(void)d;
	return &mock_cuda;
}

cudaStream_t vfm_cuda_stream(struct vfm_stream *s)
{
	return (cudaStream_t)s;
}

int vfm_cuda_check(cudaError_t e, const char *what, struct vfm_err *e2)
{
	return e == cudaSuccess ? 0 : vfm_fail(e2, VFM_EENV, "%s: CUDA error %d", what, (int)e);
}

void vfm_cuda_mem_lent(struct vfm_stream *s, const char *what, int64_t bytes)
{
	(void)s, (void)what, (void)bytes;
}

/* ---- communicators ---- */

static struct ncclComm *mock_use(ncclComm_t c)
{
	if (!c || c->magic != MOCK_MAGIC || atomic_load(&c->aborted))
		shmt_wrong("a communicator is used that was aborted or destroyed");
	return c;
}

static ncclResult_t mock_result(int rc)
{
	return rc < 0 ? ncclRemoteError : ncclSuccess;
}

static void mock_check_config(const ncclConfig_t *cfg)
{
	if (cfg->size != sizeof(*cfg) || cfg->blocking != 1 ||
		(cfg->splitShare != NCCL_CONFIG_UNDEF_INT && cfg->splitShare))
		shmt_wrong("a communicator is not blocking, or shares resources");
}

const char *ncclGetErrorString(ncclResult_t r)
{
	return r == ncclRemoteError ? "remote process exited or there was a network error" : "mock error";
}

const char *ncclGetLastError(ncclComm_t c)
{
	struct vfm_err e = {0};

	if (c && atomic_load(&shmt_broken))
		shmt_state(c->w, &e);
	return e.msg[0] ? "shm: the cable is out" : shmt_no_id ? "shm: no plug" : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	memset(id, 0, sizeof(*id));
	return mock_result(shmt_unique_id((unsigned char *)id, NULL));
}

/* Blocks until all ranks have come.  Nothing interrupts this wait. */
static ncclResult_t mock_wait(struct vfm_transport_comm *w)
{
	int rc;

	while ((rc = shmt_state(w, NULL)) == VFM_TRANSPORT_BUSY)
		usleep(200);
	return mock_result(rc);
}

static struct ncclComm *mock_comm(struct vfm_transport_comm *w)
{
	struct ncclComm *c = vfm_calloc(1, sizeof(*c));

	c->magic = MOCK_MAGIC;
	c->w = w;
	return c;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank_, ncclConfig_t *cfg)
{
	struct vfm_transport_comm *w;

	mock_check_config(cfg);
	if (shmt_dies)
		raise(SIGKILL);
	if (shmt_init(&w, NULL, (unsigned char *)&id, rank_, n, cfg->commName, NULL) < 0)
		return ncclInvalidArgument;
	if (mock_wait(w) != ncclSuccess)
		return ncclRemoteError;
	*out = mock_comm(w);
	return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *cfg)
{
	struct vfm_transport_comm *w;
	struct shmt_split *p = NULL;

	mock_check_config(cfg);
	mock_use(c);
	if (shmt_split(c->w, color < 0 ? -1 : color, key, false, cfg->commName, &w, NULL) < 0)
		return ncclInternalError;
	for (int i = 0; i < shmt->splits; i++)
		if (shmt->split[i].parent == c->w->comm && shmt->split[i].nth == c->w->splits - 1)
			p = &shmt->split[i];
	while (p->came < p->size)
		usleep(200);
	if (w && mock_wait(w) != ncclSuccess)
		return ncclRemoteError;
	*out = w ? mock_comm(w) : NULL;
	return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *now)
{
	*now = mock_result(shmt_state(mock_use(c)->w, NULL));
	return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	mock_use(c)->finalized = true;
	return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	if (!mock_use(c)->finalized)
		shmt_wrong("a communicator is destroyed that is not finalized");
	c->magic = 0;
	shmt_free(c->w);
	free(c);
	return ncclSuccess;
}

/* Waits for the device: the end of an abort frees memory. */
static void mock_sync_device(void)
{
	for (double until = vfm_now() + 10; atomic_load(&shmt_jobs) > 0; usleep(1000))
		if (vfm_now() > until)
			shmt_wrong("an abort waits for the work of another communicator");
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
	if (!c || c->magic != MOCK_MAGIC || atomic_exchange(&c->aborted, true))
		shmt_wrong("a communicator is aborted twice, or after its end");
	mock_aborts++;
	c->next = mock_dead;
	mock_dead = c;
	shmt_abort(&c->w, 1);
	if (mock_depth)
		mock_ending++;
	else
		mock_sync_device();
	return ncclSuccess;
}

/* ---- calls ---- */

/* Blocks until *met is at least n, or until the communicator is aborted. */
static ncclResult_t mock_meet_others(struct ncclComm *c, _Atomic int *met, int n)
{
	while (atomic_load(met) < n) {
		if (atomic_load(&c->aborted) || atomic_load(&shmt_broken))
			return ncclInternalError;
		usleep(200);
	}
	return ncclSuccess;
}

static ncclResult_t mock_connect(ncclComm_t c)
{
	mock_calls++;
	mock_use(c);
	if (!c->connected)
		atomic_fetch_add(&mock_meet->came[c->w->comm], 1);
	c->connected = true;
	return mock_meet_others(c, &mock_meet->came[c->w->comm], c->w->size);
}

#define MOCK_CALL(c, call)                                                                                             \
	do {                                                                                                           \
		ncclResult_t r_;                                                                                       \
		if (mock_stub)                                                                                         \
			return ncclSuccess;                                                                            \
		r_ = mock_connect(c);                                                                                  \
		return r_ != ncclSuccess ? r_ : mock_result(call);                                                     \
	} while (0)

static enum vfm_dtype mock_dtype(ncclDataType_t t)
{
	return t == ncclFloat32 ? VFM_F32 : t == ncclBfloat16 ? VFM_BF16 : t == ncclFloat64 ? VFM_F64 : VFM_I64;
}

ncclResult_t ncclAllReduce(
	const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
	if (in != out || op != ncclSum)
		shmt_wrong("ncclAllReduce: not in place, or not a sum");
	MOCK_CALL(c, shmt_all_reduce(c->w, (struct vfm_stream *)s, out, (int64_t)n, mock_dtype(t), NULL));
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s)
{
	(void)t;
	MOCK_CALL(c, shmt_all_gather(c->w, (struct vfm_stream *)s, in, out, n, NULL));
}

ncclResult_t ncclReduceScatter(
	const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
	(void)op;
	MOCK_CALL(c, shmt_reduce_scatter(c->w, (struct vfm_stream *)s, in, out, (int64_t)n, mock_dtype(t), NULL));
}

ncclResult_t ncclAlltoAll(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s)
{
	(void)t;
	MOCK_CALL(c, shmt_all_to_all(c->w, (struct vfm_stream *)s, in, out, n, NULL));
}

ncclResult_t ncclBroadcast(
	const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s)
{
	(void)t;
	if (in != out)
		shmt_wrong("ncclBroadcast: not in place");
	MOCK_CALL(c, shmt_broadcast(c->w, (struct vfm_stream *)s, out, n, root, NULL));
}

ncclResult_t ncclGroupStart(void)
{
	mock_depth++;
	return ncclSuccess;
}

static ncclResult_t mock_message(void *p, size_t n, int peer, bool send, ncclComm_t c, cudaStream_t s)
{
	if (!mock_depth || mock_group.n == MOCK_GROUP || (mock_group.n && mock_group.c != c))
		shmt_wrong("a message outside of a group, or of another communicator");
	mock_group.c = mock_use(c);
	mock_group.s = (struct vfm_stream *)s;
	mock_group.m[mock_group.n++] = (struct vfm_transport_msg){p, n, peer, send};
	return ncclSuccess;
}

ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
	(void)t;
	return mock_message((void *)p, n, peer, true, c, s);
}

ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
	(void)t;
	return mock_message(p, n, peer, false, c, s);
}

ncclResult_t ncclGroupEnd(void)
{
	struct ncclComm *c = mock_group.c;
	int n = mock_group.n;

	mock_depth--;
	if (mock_ending)
		mock_sync_device();
	mock_ending = mock_group.n = 0;
	if (!n || mock_stub)
		return ncclSuccess;
	mock_calls++;
	for (int i = 0; i < n; i++) {
		struct vfm_transport_msg *m = &mock_group.m[i];
		int from = m->send ? c->w->rank : m->peer, to = m->send ? m->peer : c->w->rank;

		atomic_store(&mock_meet->side[c->w->comm][from][to][m->send], 1);
	}
	for (int i = 0; i < n; i++) {
		struct vfm_transport_msg *m = &mock_group.m[i];
		int from = m->send ? c->w->rank : m->peer, to = m->send ? m->peer : c->w->rank;

		if (mock_meet_others(c, &mock_meet->side[c->w->comm][from][to][!m->send], 1) != ncclSuccess)
			return ncclInternalError;
	}
	return mock_result(shmt_messages(c->w, mock_group.s, mock_group.m, n, NULL));
}

/* ---- memory ---- */

ncclResult_t ncclMemAlloc(void **p, size_t n)
{
	return mock_result(shmt_mem_alloc(NULL, n, "a buffer", p, NULL));
}

ncclResult_t ncclMemFree(void *p)
{
	shmt_mem_free(NULL, p, shmt_find(NULL, p, 1)->bytes, NULL);
	return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t c, void *p, size_t n, void **handle)
{
	return mock_result(shmt_register(mock_use(c)->w, p, n, handle, NULL));
}

ncclResult_t ncclCommDeregister(ncclComm_t c, void *handle)
{
	shmt_deregister(mock_use(c)->w, handle);
	return ncclSuccess;
}

#endif
