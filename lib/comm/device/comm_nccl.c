/* The transport of CUDA devices: NCCL.
 *
 * Communicators are blocking: a collective returns when it is enqueued.  (For a non-blocking communicator, NCCL 2.28
 * starts a thread for each collective and polls for it.)
 *
 * Init, split and finish wait for the other ranks, and NCCL cannot interrupt them.  Each runs in its own thread, and
 * `state` returns BUSY meanwhile; if the caller's wait ends first, the thread is left behind.  The first collective of
 * a communicator connects, which blocks the host; another thread can end it with `abort`.
 *
 * NCCL's own environment variables apply.  VFM_NCCL_CTAS=N limits each communicator to N thread blocks.  Communicators
 * do not share resources (splitShare): NCCL would serialize operations that run on different streams.  A deterministic
 * device disables sums in the switch (NVLS), whose order NCCL does not specify. */
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/par.h"
#include "comm/device/comm_nccl.h"
#include "device/cuda/cuda_dev.h"
#include "device/cuda/cuda_mem.h"
#include "device/cuda/cuda_stream.h"

_Static_assert(sizeof(ncclUniqueId) == VFM_TRANSPORT_ID, "an id of NCCL");

struct vfm_transport_comm {
	atomic_int users;     /* the owner, and threads in calls that wait for other ranks */
	pthread_mutex_t lock; /* held in calls of NCCL: c is not freed meanwhile */
	ncclComm_t c;         /* NULL: not made yet, or aborted */
	atomic_bool gone;     /* aborted */
	atomic_bool waits;    /* a thread is in init, split or finish */
	ncclResult_t waited;  /* its result, once `waits` is false */
	bool finished;        /* that was finish */
	char name[32];        /* NCCL may keep a pointer to it */
};

static int fail_nccl(ncclResult_t r, ncclComm_t c, const char *what, struct vfm_err *err)
{
	const char *more = ncclGetLastError(c);

	return vfm_fail(err, VFM_EENV, "NCCL: %s: %s%s%s", what, ncclGetErrorString(r), more && *more ? ": " : "",
		more ? more : "");
}

static int nccl_result_code(ncclResult_t r, ncclComm_t c, const char *what, struct vfm_err *err)
{
	return r == ncclSuccess ? 0 : fail_nccl(r, c, what, err);
}

/* ---- communicators ---- */

static struct vfm_transport_comm *nccl_comm_new(const char *name)
{
	struct vfm_transport_comm *w = vfm_calloc(1, sizeof(*w));

	atomic_store(&w->users, 1);
	snprintf(w->name, sizeof(w->name), "%s", name);
	pthread_mutex_init(&w->lock, NULL);
	return w;
}

static void drop_nccl_comm(struct vfm_transport_comm *w)
{
	if (!w || atomic_fetch_sub(&w->users, 1) > 1)
		return;
	pthread_mutex_destroy(&w->lock);
	free(w);
}

/* Number of multiprocessors that products leave to collectives if the user does not set the number of thread blocks. */
enum { USUAL_CTAS = 16 };

/* Thread blocks that a communicator may use; 0: as many as NCCL chooses. */
static int asked_ctas(void)
{
	const char *ctas = getenv("VFM_NCCL_CTAS");
	int64_t n;

	return ctas && vfm_parse_i64(ctas, 1, 64, &n, NULL) == 0 ? (int)n : 0;
}

static void set_nccl_config(ncclConfig_t *cfg, bool p2p, const char *name)
{
	int n = asked_ctas();

	cfg->blocking = 1;
	if (name)
		cfg->commName = name;
	if (!n && p2p)
		n = VFM_P2P_CTAS;
	if (n) {
		cfg->minCTAs = 1;
		cfg->maxCTAs = n;
	}
}

static int nccl_device_id(struct vfm_dev *d, char id[VFM_TRANSPORT_DEVICE], struct vfm_err *err)
{
	struct cudaDeviceProp p;
	size_t n;

	TRY(vfm_cuda_check(cudaGetDeviceProperties(&p, vfm_cuda_device(d)->ordinal), "the device's properties", err));
	memset(id, 0, VFM_TRANSPORT_DEVICE);
	n = (size_t)snprintf(id, VFM_TRANSPORT_DEVICE, "%04x:%02x ", (unsigned)p.pciDomainID, (unsigned)p.pciBusID);
	for (size_t i = 0; i < sizeof(p.uuid.bytes); i++)
		n += (size_t)snprintf(id + n, VFM_TRANSPORT_DEVICE - n, "%02x", (unsigned char)p.uuid.bytes[i]);
	return 0;
}

/* NCCL refuses two ranks of one host on one device.  Ranks that seem to be on different hosts communicate over sockets,
 * which is slow and not supported by NVIDIA.  NCCL reads these variables in its first call. */
static int nccl_share(int rank, struct vfm_err *err)
{
	char host[32];
	const char *const fixed[][2] = {{"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"},
		{"NCCL_MNNVL_ENABLE", "0"}, {"NCCL_MAX_NCHANNELS", "2"}};

	(void)err;
	snprintf(host, sizeof(host), "vfm-rank-%d", rank);
	setenv("NCCL_HOSTID", host, 1);
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
		setenv(fixed[i][0], fixed[i][1], 0);
	return 0;
}

static int nccl_unique_id(unsigned char id[VFM_TRANSPORT_ID], struct vfm_err *err)
{
	ncclUniqueId u;
	ncclResult_t r = ncclGetUniqueId(&u);

	if (r != ncclSuccess)
		return fail_nccl(r, NULL, "a communicator's id", err);
	memcpy(id, &u, sizeof(u));
	return 0;
}

/* ---- calls that wait for the other ranks ---- */

struct nccl_wait {
	enum { NCCL_INIT, NCCL_SPLIT, NCCL_FINISH } what;
	struct vfm_transport_comm *from, *made; /* NULL: init has no parent; a rank may get no communicator */
	int device, rank, size, color, key;
	ncclUniqueId id;
	ncclConfig_t cfg;
};

static void begin_nccl_wait(struct vfm_transport_comm *w)
{
	if (!w)
		return;
	atomic_fetch_add(&w->users, 1);
	w->waited = ncclSuccess;
	atomic_store(&w->waits, true);
}

static void end_nccl_wait(struct vfm_transport_comm *w, ncclResult_t r)
{
	if (!w)
		return;
	w->waited = r;
	atomic_store(&w->waits, false);
	drop_nccl_comm(w);
}

/* Gives the communicator to its owner, unless the owner gave up. */
static void hand_over_nccl_comm(struct vfm_transport_comm *w, ncclComm_t c)
{
	bool gone;

	if (!w || !c)
		return;
	pthread_mutex_lock(&w->lock);
	gone = atomic_load(&w->gone);
	if (!gone)
		w->c = c;
	pthread_mutex_unlock(&w->lock);
	if (gone)
		ncclCommAbort(c);
}

static void *run_nccl_wait(void *arg)
{
	struct nccl_wait *k = arg;
	struct vfm_transport_comm *from = k->from;
	ncclResult_t r = cudaSetDevice(k->device) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
	ncclComm_t made = NULL;

	if (from)
		pthread_mutex_lock(&from->lock);
	if (from && (!from->c || atomic_load(&from->gone)))
		r = ncclInvalidUsage;
	if (r == ncclSuccess && k->what == NCCL_INIT)
		r = ncclCommInitRankConfig(&made, k->size, k->id, k->rank, &k->cfg);
	else if (r == ncclSuccess && k->what == NCCL_SPLIT)
		r = ncclCommSplit(from->c, k->color, k->key, &made, &k->cfg);
	else if (r == ncclSuccess)
		from->finished = (r = ncclCommFinalize(from->c)) == ncclSuccess;
	if (from)
		pthread_mutex_unlock(&from->lock);
	if (r == ncclSuccess)
		hand_over_nccl_comm(k->made, made);
	end_nccl_wait(k->made, r);
	end_nccl_wait(from, r);
	free(k);
	return NULL;
}

/* Returns BUSY; `state` of k.from and k.made then returns BUSY until the call has returned. */
static int start_nccl_wait(const struct nccl_wait *k, struct vfm_err *err)
{
	struct nccl_wait *copy = vfm_malloc(sizeof(*copy));
	pthread_t thread;
	int rc;

	*copy = *k;
	begin_nccl_wait(k->from);
	begin_nccl_wait(k->made);
	rc = vfm_thread_start(&thread, run_nccl_wait, copy);
	if (!rc) {
		pthread_detach(thread);
		return VFM_TRANSPORT_BUSY;
	}
	end_nccl_wait(k->made, ncclSystemError);
	end_nccl_wait(k->from, ncclSystemError);
	free(copy);
	return vfm_fail(err, VFM_EENV, "NCCL: cannot start a thread: %s", strerror(rc));
}

static int current_device(int *device, struct vfm_err *err)
{
	return vfm_cuda_check(cudaGetDevice(device), "NCCL", err);
}

static int nccl_init(struct vfm_transport_comm **out, struct vfm_dev *d, const unsigned char id[VFM_TRANSPORT_ID],
	int rank, int size, const char *name, struct vfm_err *err)
{
	struct vfm_transport_comm *w = *out = nccl_comm_new(name);
	struct nccl_wait k = {.what = NCCL_INIT,
		.made = w,
		.device = vfm_cuda_device(d)->ordinal,
		.rank = rank,
		.size = size,
		.cfg = NCCL_CONFIG_INITIALIZER};

	TRY(vfm_cuda_check(cudaSetDevice(k.device), "NCCL", err));
	if (vfm_cuda_device(d)->deterministic)
		setenv("NCCL_NVLS_ENABLE", "0", 0);
	memcpy(&k.id, id, sizeof(k.id));
	set_nccl_config(&k.cfg, false, w->name);
	d->comm_units = asked_ctas() ? asked_ctas() : USUAL_CTAS;
	return start_nccl_wait(&k, err);
}

static int nccl_split(struct vfm_transport_comm *w, int color, int key, bool p2p, const char *name,
	struct vfm_transport_comm **out, struct vfm_err *err)
{
	struct nccl_wait k = {.what = NCCL_SPLIT,
		.from = w,
		.color = color < 0 ? NCCL_SPLIT_NOCOLOR : color,
		.key = key,
		.cfg = NCCL_CONFIG_INITIALIZER};

	*out = NULL;
	TRY(current_device(&k.device, err));
	if (color >= 0)
		*out = k.made = nccl_comm_new(name);
	set_nccl_config(&k.cfg, p2p, k.made ? k.made->name : NULL);
	return start_nccl_wait(&k, err);
}

static int nccl_finish(struct vfm_transport_comm *w, struct vfm_err *err)
{
	struct nccl_wait k = {.what = NCCL_FINISH, .from = w};

	TRY(current_device(&k.device, err));
	return start_nccl_wait(&k, err);
}

/* ---- the state of a communicator ---- */

/* Returns 0 with the lock held, or an error without it. */
static int lock_comm(struct vfm_transport_comm *w, struct vfm_err *err)
{
	pthread_mutex_lock(&w->lock);
	if (w->c && !atomic_load(&w->gone))
		return 0;
	pthread_mutex_unlock(&w->lock);
	return vfm_fail(err, VFM_EENV, "NCCL: the communicator was aborted");
}

static int unlock_comm(struct vfm_transport_comm *w, ncclResult_t r, const char *what, struct vfm_err *err)
{
	int rc = nccl_result_code(r, w->c, what, err);

	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* BUSY also while a thread holds the lock, since it is in a call of NCCL. */
static int nccl_state(struct vfm_transport_comm *w, struct vfm_err *err)
{
	ncclResult_t now = ncclSuccess, r;

	if (atomic_load(&w->waits))
		return VFM_TRANSPORT_BUSY;
	if (w->waited != ncclSuccess)
		return fail_nccl(w->waited, NULL, "making or ending a communicator", err);
	if (pthread_mutex_trylock(&w->lock) != 0)
		return VFM_TRANSPORT_BUSY;
	if (!w->c || atomic_load(&w->gone)) {
		pthread_mutex_unlock(&w->lock);
		return vfm_fail(err, VFM_EENV, "NCCL: the communicator was aborted");
	}
	r = ncclCommGetAsyncError(w->c, &now);
	return unlock_comm(w, r != ncclSuccess ? r : now, "in the background", err);
}

static bool lock_until(struct vfm_transport_comm *w, const struct timespec *until)
{
	return pthread_mutex_timedlock(&w->lock, until) == 0;
}

/* One group call for all: the end of one communicator waits for the device, and so for the work of the others.
 *
 * A thread that hangs in a collective keeps its lock: the collective connects, or the device's queue is full of work
 * that waits for this abort.  The abort then proceeds without the lock and makes that collective return an error. */
static void nccl_abort(struct vfm_transport_comm *const *w, int n)
{
	bool *mine = vfm_calloc((size_t)n + 1, sizeof(*mine)), *locked = vfm_calloc((size_t)n + 1, sizeof(*locked));
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 2;
	for (int i = 0; i < n; i++)
		mine[i] = !atomic_exchange(&w[i]->gone, true);
	for (int i = 0; i < n; i++)
		locked[i] = mine[i] && lock_until(w[i], &until);
	ncclGroupStart();
	for (int i = 0; i < n; i++)
		if (mine[i] && w[i]->c)
			ncclCommAbort(w[i]->c);
	ncclGroupEnd();
	for (int i = 0; i < n; i++)
		if (locked[i]) {
			w[i]->c = NULL;
			pthread_mutex_unlock(&w[i]->lock);
		}
	free(mine);
	free(locked);
}

static void nccl_free(struct vfm_transport_comm *w)
{
	if (!w)
		return;
	if (nccl_state(w, NULL) == 0 && w->finished)
		ncclCommDestroy(w->c); /* else this call would wait for the other ranks */
	else
		nccl_abort(&w, 1);
	drop_nccl_comm(w);
}

/* ---- calls ---- */

static const ncclDataType_t types[VFM_DTYPE_N] = {
	[VFM_F32] = ncclFloat32, [VFM_BF16] = ncclBfloat16, [VFM_F64] = ncclFloat64, [VFM_I64] = ncclInt64};

static int nccl_all_reduce(
	struct vfm_transport_comm *w, struct vfm_stream *s, void *x, int64_t n, enum vfm_dtype dt, struct vfm_err *err)
{
	TRY(lock_comm(w, err));
	return unlock_comm(
		w, ncclAllReduce(x, x, (size_t)n, types[dt], ncclSum, w->c, vfm_cuda_stream(s)), "all_reduce", err);
}

static int nccl_all_gather(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	size_t bytes_each, struct vfm_err *err)
{
	TRY(lock_comm(w, err));
	return unlock_comm(
		w, ncclAllGather(in, out, bytes_each, ncclUint8, w->c, vfm_cuda_stream(s)), "all_gather", err);
}

static int nccl_reduce_scatter(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	int64_t n_each, enum vfm_dtype dt, struct vfm_err *err)
{
	TRY(lock_comm(w, err));
	return unlock_comm(w, ncclReduceScatter(in, out, (size_t)n_each, types[dt], ncclSum, w->c, vfm_cuda_stream(s)),
		"reduce_scatter", err);
}

static int nccl_broadcast(
	struct vfm_transport_comm *w, struct vfm_stream *s, void *x, size_t bytes, int root, struct vfm_err *err)
{
	TRY(lock_comm(w, err));
	return unlock_comm(w, ncclBroadcast(x, x, bytes, ncclUint8, root, w->c, vfm_cuda_stream(s)), "broadcast", err);
}

/* One group call: otherwise two ranks that both send first would deadlock. */
static int nccl_messages(struct vfm_transport_comm *w, struct vfm_stream *s, const struct vfm_transport_msg *m, int n,
	struct vfm_err *err)
{
	ncclResult_t r, e;

	TRY(lock_comm(w, err));
	r = ncclGroupStart();
	for (int i = 0; i < n && r == ncclSuccess; i++)
		r = m[i].send ? ncclSend(m[i].p, m[i].bytes, ncclUint8, m[i].peer, w->c, vfm_cuda_stream(s))
			      : ncclRecv(m[i].p, m[i].bytes, ncclUint8, m[i].peer, w->c, vfm_cuda_stream(s));
	e = ncclGroupEnd();
	return unlock_comm(w, r != ncclSuccess ? r : e, "messages", err);
}

static int nccl_all_to_all(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	size_t bytes_each, struct vfm_err *err)
{
	TRY(lock_comm(w, err));
	return unlock_comm(
		w, ncclAlltoAll(in, out, bytes_each, ncclUint8, w->c, vfm_cuda_stream(s)), "all_to_all", err);
}

/* Each allocation is one range of physical memory, of the kind and granularity that every path of NCCL accepts.  The
 * device's pool maps its ranges from several; NCCL would register only the first. */
static int nccl_mem_alloc(struct vfm_stream *s, size_t bytes, const char *what, void **p, struct vfm_err *err)
{
	ncclResult_t r;

	*p = NULL;
	TRY(vfm_cuda_check(cudaSetDevice(vfm_cuda_device(s->dev)->ordinal), "NCCL", err));
	r = ncclMemAlloc(p, bytes);
	if (r != ncclSuccess) {
		cudaGetLastError();
		return fail_nccl(r, NULL, what, err);
	}
	vfm_cuda_mem_lent(s, what, (int64_t)bytes);
	return 0;
}

static void nccl_mem_free(struct vfm_stream *s, void *p, size_t bytes, const char *what)
{
	ncclMemFree(p);
	vfm_cuda_mem_lent(s, what, -(int64_t)bytes);
}

static int nccl_register(struct vfm_transport_comm *w, void *p, size_t bytes, void **handle, struct vfm_err *err)
{
	TRY(lock_comm(w, err));
	return unlock_comm(w, ncclCommRegister(w->c, p, bytes, handle), "registering memory", err);
}

static void nccl_deregister(struct vfm_transport_comm *w, void *handle)
{
	if (lock_comm(w, NULL) == 0)
		unlock_comm(w, ncclCommDeregister(w->c, handle), "memory", NULL);
}

const struct vfm_transport vfm_nccl_transport = {
	.name = "nccl",
	.device_id = nccl_device_id,
	.share = nccl_share,
	.unique_id = nccl_unique_id,
	.init = nccl_init,
	.split = nccl_split,
	.state = nccl_state,
	.abort = nccl_abort,
	.finish = nccl_finish,
	.free = nccl_free,
	.all_reduce = nccl_all_reduce,
	.all_gather = nccl_all_gather,
	.reduce_scatter = nccl_reduce_scatter,
	.all_to_all = nccl_all_to_all,
	.broadcast = nccl_broadcast,
	.messages = nccl_messages,
	.mem_alloc = nccl_mem_alloc,
	.mem_free = nccl_mem_free,
	.register_memory = nccl_register,
	.deregister_memory = nccl_deregister,
};
