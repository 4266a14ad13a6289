/* emu.cpp - the scheduler of cuda/emu.h: the threads of a block are fibers on one thread of the host. */
#include "cuda/emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

enum { MAX_THREADS = 1024, STACK = 64 << 10, MAX_SHARED = 232448 };
enum state { READY, AT_BARRIER, AT_LANES, DONE };

struct fiber {
	ucontext_t ctx;
	enum state state;
	uint3 idx;
};

static struct fiber fibers[MAX_THREADS];
static uint64_t lane_in[MAX_THREADS], lane_out[MAX_THREADS];
static char *stacks;
alignas(16) static unsigned char shared[MAX_SHARED];
static ucontext_t scheduler;
static int me;
static void (*body)(void *ctx);
static void *body_ctx;

static void die(const char *why)
{
	fprintf(stderr, "emulated kernel: %s (block %u,%u,%u of %u,%u,%u; %u,%u,%u threads)\n", why, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x,
		gridDim.y, gridDim.z, blockDim.x, blockDim.y, blockDim.z);
	abort();
}

static void fiber_main(void)
{
	body(body_ctx);
	fibers[me].state = DONE;
}

static void yield(enum state why)
{
	fibers[me].state = why;
	swapcontext(&fibers[me].ctx, &scheduler);
}

void *vfm_emu_shared(void)
{
	return shared;
}

void vfm_emu_barrier(void)
{
	yield(AT_BARRIER);
}

const uint64_t *vfm_emu_lanes(uint64_t mine)
{
	lane_in[me] = mine;
	yield(AT_LANES);
	return lane_out + me / 32 * 32;
}

static int count(int from, int to, enum state st)
{
	int n = 0;

	for (int i = from; i < to; i++)
		n += fibers[i].state == st;
	return n;
}

/* After all fibers have run as far as they can: lets go those who wait together.  False: all are done. */
static bool release(int n)
{
	bool some = false;

	for (int w = 0; w < n; w += 32) {
		int to = w + 32 < n ? w + 32 : n, here = count(w, to, AT_LANES);

		if (here == 0)
			continue;
		if (here != 32)
			die("a shuffle, vote or __syncwarp that not all 32 lanes of a warp reached");
		memcpy(lane_out + w, lane_in + w, 32 * sizeof(*lane_in));
		for (int i = w; i < to; i++)
			fibers[i].state = READY;
		some = true;
	}
	if (some || count(0, n, DONE) == n)
		return some;
	if (count(0, n, AT_BARRIER) != n)
		die("a __syncthreads that not all threads of the block reached");
	for (int i = 0; i < n; i++)
		fibers[i].state = READY;
	return true;
}

static void run_block(int n)
{
	for (int i = 0; i < n; i++) {
		struct fiber *f = &fibers[i];

		getcontext(&f->ctx);
		f->ctx.uc_stack.ss_sp = stacks + (size_t)i * STACK;
		f->ctx.uc_stack.ss_size = STACK;
		f->ctx.uc_link = &scheduler;
		makecontext(&f->ctx, fiber_main, 0);
		f->state = READY;
		f->idx = {(unsigned)i % blockDim.x, (unsigned)i / blockDim.x % blockDim.y, (unsigned)i / blockDim.x / blockDim.y};
	}
	do {
		for (int i = 0; i < n; i++) {
			if (fibers[i].state != READY)
				continue;
			me = i;
			threadIdx = fibers[i].idx;
			swapcontext(&scheduler, &fibers[i].ctx);
		}
	} while (release(n));
}

void vfm_emu_run(dim3 grid, dim3 block, size_t smem, void (*thread)(void *ctx), void *ctx)
{
	uint64_t n = (uint64_t)block.x * block.y * block.z;

	gridDim = grid, blockDim = block;
	blockIdx = {0, 0, 0};
	if (n == 0 || n > MAX_THREADS || block.z > 64 || grid.y > 65535 || grid.z > 65535 || grid.x == 0 || grid.x > 0x7fffffff || grid.y == 0 ||
		grid.z == 0)
		die("invalid configuration argument");
	if (smem > MAX_SHARED)
		die("too much dynamic shared memory");
	if (!stacks) {
		stacks = (char *)mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (stacks == MAP_FAILED)
			die("no memory for the fibers");
	}
	body = thread, body_ctx = ctx;
	for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
		for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
			for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
				memset(shared, 0xa5, smem);
				run_block((int)n);
			}
}
