/* gaps.so - records the GPU activity of a command through CUPTI, for evaluation by gaps.py.
 *
 *	CUDA_INJECTION64_PATH=gaps.so VFM_GAPS_OUT=FILE COMMAND ...
 *
 * The driver loads it when the command first uses CUDA.  It opens CUPTI (VFM_CUPTI, or libcupti.so on the loader's
 *path) and records kernels, copies and memsets; with VFM_GAPS_API=1 also API calls of the host, which slows the host
 *down. FILE contains unordered lines, with times in ns:
 *
 *	k START END STREAM CORRELATION GRAPH REGISTERS SHARED-BYTES GRID BLOCK NAME
 *	c START END STREAM CORRELATION GRAPH KIND BYTES
 *	z START END STREAM CORRELATION GRAPH BYTES
 *	a START END CORRELATION NAME
 *	d N
 *	! WORDS
 *
 * k is a kernel (GRID and BLOCK are x,y,z), c a copy (KIND 1: to the device, 2: to the host, 8: on it), z a memset,
 * a an API call, d the number of lost records, ! the reason why nothing was recorded.
 *
 * The command continues in any case.
 */
#include <cupti.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The common first fields of the records of all CUPTI versions. */
#define CALLS(X)                                                                                                       \
	X(cuptiActivityRegisterCallbacks)                                                                              \
	X(cuptiActivityEnable)                                                                                         \
	X(cuptiActivityGetNextRecord)                                                                                  \
	X(cuptiActivityGetNumDroppedRecords)                                                                           \
	X(cuptiActivityFlushAll)                                                                                       \
	X(cuptiGetCallbackName)                                                                                        \
	X(cuptiGetResultString)

static struct {
#define X(name) __typeof__(&name) name;
	CALLS(X)
#undef X
} cupti;

enum { BUFFER = 8 << 20 };
static FILE *out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void CUPTIAPI want(uint8_t **buffer, size_t *size, size_t *max)
{
	*buffer = aligned_alloc(8, BUFFER);
	*size = *buffer ? BUFFER : 0;
	*max = 0;
}

static void write_api(const CUpti_ActivityAPI *a)
{
	CUpti_CallbackDomain domain =
		a->kind == CUPTI_ACTIVITY_KIND_DRIVER ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
	const char *name = NULL;

	if (cupti.cuptiGetCallbackName(domain, a->cbid, &name) != CUPTI_SUCCESS || !name)
		name = "?";
	fprintf(out, "a %" PRIu64 " %" PRIu64 " %u %s\n", a->start, a->end, a->correlationId, name);
}

/* Later versions only append fields to a record. */
static void write_record(const CUpti_Activity *r)
{
	switch (r->kind) {
	case CUPTI_ACTIVITY_KIND_KERNEL:
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
		const CUpti_ActivityKernel9 *k = (const CUpti_ActivityKernel9 *)r;

		fprintf(out, "k %" PRIu64 " %" PRIu64 " %u %u %u %u %d %d,%d,%d %d,%d,%d %s\n", k->start, k->end,
			k->streamId, k->correlationId, k->graphId, k->registersPerThread,
			k->staticSharedMemory + k->dynamicSharedMemory, k->gridX, k->gridY, k->gridZ, k->blockX,
			k->blockY, k->blockZ, k->name ? k->name : "?");
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMCPY: {
		const CUpti_ActivityMemcpy5 *c = (const CUpti_ActivityMemcpy5 *)r;

		fprintf(out, "c %" PRIu64 " %" PRIu64 " %u %u %u %u %" PRIu64 "\n", c->start, c->end, c->streamId,
			c->correlationId, c->graphId, c->copyKind, c->bytes);
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMSET: {
		const CUpti_ActivityMemset4 *z = (const CUpti_ActivityMemset4 *)r;

		fprintf(out, "z %" PRIu64 " %" PRIu64 " %u %u %u %" PRIu64 "\n", z->start, z->end, z->streamId,
			z->correlationId, z->graphId, z->bytes);
		break;
	}
	case CUPTI_ACTIVITY_KIND_RUNTIME:
	case CUPTI_ACTIVITY_KIND_DRIVER:
		write_api((const CUpti_ActivityAPI *)r);
		break;
	default:
		break;
	}
}

static void CUPTIAPI done(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	CUpti_Activity *r = NULL;
	size_t lost = 0;

	(void)size;
	pthread_mutex_lock(&lock);
	while (valid && cupti.cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS)
		write_record(r);
	if (cupti.cuptiActivityGetNumDroppedRecords(ctx, stream, &lost) == CUPTI_SUCCESS && lost)
		fprintf(out, "d %zu\n", lost);
	pthread_mutex_unlock(&lock);
	free(buffer);
}

static void at_end(void)
{
	cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	pthread_mutex_lock(&lock);
	fflush(out);
	pthread_mutex_unlock(&lock);
}

static void *open_cupti(void)
{
	static const char *const names[] = {"libcupti.so", "libcupti.so.13", "libcupti.so.12"};
	const char *given = getenv("VFM_CUPTI");
	void *h = given && *given ? dlopen(given, RTLD_NOW | RTLD_GLOBAL) : NULL;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !h; i++)
		h = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
	return h;
}

static int enable(CUpti_ActivityKind kind, const char *what)
{
	CUptiResult e = cupti.cuptiActivityEnable(kind);
	const char *words = "?";

	if (e == CUPTI_SUCCESS)
		return 0;
	cupti.cuptiGetResultString(e, &words);
	fprintf(out, "! no CUPTI: %s: %s\n", what, words);
	return -1;
}

static void start(void)
{
	const char *api = getenv("VFM_GAPS_API");
	void *h = open_cupti();

	if (!h) {
		fprintf(out, "! no CUPTI: %s\n", dlerror());
		return;
	}
#define X(name)                                                                                                        \
	*(void **)&cupti.name = dlsym(h, #name);                                                                       \
	if (!cupti.name) {                                                                                             \
		fprintf(out, "! no CUPTI: it has no %s\n", #name);                                                     \
		return;                                                                                                \
	}
	CALLS(X)
#undef X
	if (cupti.cuptiActivityRegisterCallbacks(want, done) != CUPTI_SUCCESS) {
		fprintf(out, "! no CUPTI: it takes no callbacks\n");
		return;
	}
	if (enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernels") < 0 ||
		enable(CUPTI_ACTIVITY_KIND_MEMCPY, "copies") < 0 || enable(CUPTI_ACTIVITY_KIND_MEMSET, "memsets") < 0)
		return;
	if (api && strcmp(api, "1") == 0 &&
		(enable(CUPTI_ACTIVITY_KIND_RUNTIME, "calls") < 0 || enable(CUPTI_ACTIVITY_KIND_DRIVER, "calls") < 0))
		return;
	atexit(at_end);
}

int InitializeInjection(void);
int InitializeInjection(void)
{
	const char *path = getenv("VFM_GAPS_OUT");

	if (out || !path || !*path)
		return 1;
	out = fopen(path, "w");
	if (!out)
		return 1;
	start();
	fflush(out);
	return 1;
}
