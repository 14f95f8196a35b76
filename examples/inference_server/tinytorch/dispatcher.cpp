// The C++ side of the small framework: finds the driver as frameworks do (dlopen of libcuda.so.1, then
// cuGetProcAddress), keeps one stream, and launches kernels for the operators of functional.py.
// Built without frame pointers, as the frameworks' wheels are.
#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <initializer_list>

#define NOINLINE __attribute__((noinline))

namespace driver {

// The few names of the CUDA driver API that are needed, by its documented ABI.
using Result = int;
using Function = struct CUfunc_st *;
using Stream = struct CUstream_st *;
using Pointer = unsigned long long;

struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    Stream stream;
    void *attributes;
    unsigned attribute_count;
};

using GetProcAddress = Result (*)(const char *, void **, int, std::uint64_t, int *);

struct Api {
    Result (*init)(unsigned);
    Result (*retain)(void **, int);
    Result (*set_current)(void *);
    Result (*load)(void **, const void *);
    Result (*get_function)(Function *, void *, const char *);
    Result (*create_stream)(Stream *, unsigned);
    Result (*synchronize)(Stream);
    Result (*allocate)(Pointer *, std::size_t);
    Result (*upload)(Pointer, const void *, std::size_t, Stream);
    Result (*download)(void *, Pointer, std::size_t, Stream);
    Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
                     void **);
    Result (*launch_ex)(const LaunchConfig *, Function, void **, void **);
};

constexpr int kVersion = 12000;
constexpr unsigned kNonBlockingStream = 1;

template <typename Pointer> bool resolve(GetProcAddress get, const char *name, Pointer *out) {
    void *address = nullptr;
    int status = 0;
    if (get(name, &address, kVersion, 0, &status) != 0 || !address)
        return false;
    *out = reinterpret_cast<Pointer>(address);
    return true;
}

bool load_api(Api *api) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    auto get = library ? reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2")) : nullptr;
    return get && resolve(get, "cuInit", &api->init) && resolve(get, "cuDevicePrimaryCtxRetain", &api->retain) &&
           resolve(get, "cuCtxSetCurrent", &api->set_current) && resolve(get, "cuModuleLoadData", &api->load) &&
           resolve(get, "cuModuleGetFunction", &api->get_function) &&
           resolve(get, "cuStreamCreate", &api->create_stream) &&
           resolve(get, "cuStreamSynchronize", &api->synchronize) && resolve(get, "cuMemAlloc", &api->allocate) &&
           resolve(get, "cuMemcpyHtoDAsync", &api->upload) && resolve(get, "cuMemcpyDtoHAsync", &api->download) &&
           resolve(get, "cuLaunchKernel", &api->launch) && resolve(get, "cuLaunchKernelEx", &api->launch_ex);
}

} // namespace driver

namespace tiny {

struct Shape {
    unsigned rows, columns;
};

constexpr int kInvalidValue = 1, kNotInitialized = 3; // of the driver
constexpr unsigned kBlock = 256;
constexpr std::size_t kScratchBytes = 1 << 20;

class Device {
  public:
    driver::Result open(const char *image) {
        if (!driver::load_api(&api_))
            return kNotInitialized;
        void *context = nullptr, *module = nullptr;
        driver::Result result = api_.init(0);
        result = result ? result : api_.retain(&context, 0);
        result = result ? result : api_.set_current(context);
        result = result ? result : api_.load(&module, image);
        result = result ? result : api_.create_stream(&stream_, driver::kNonBlockingStream);
        result = result ? result : api_.allocate(&scratch_, kScratchBytes);
        module_ = module;
        return result;
    }

    driver::Result find(const char *name, driver::Function *function) {
        return api_.get_function(function, module_, name);
    }

    // Both ways to launch that frameworks use.
    NOINLINE driver::Result launch(driver::Function function, Shape shape) {
        unsigned blocks = (shape.columns + kBlock - 1) / kBlock;
        return api_.launch(function, blocks, shape.rows, 1, kBlock, 1, 1, 0, stream_, nullptr, nullptr);
    }

    NOINLINE driver::Result launch_ex(driver::Function function, Shape shape, unsigned shared_bytes) {
        driver::LaunchConfig config{shape.columns, shape.rows, 1, 128, 1, 1, shared_bytes, stream_, nullptr, 0};
        return api_.launch_ex(&config, function, nullptr, nullptr);
    }

    driver::Result upload(const void *data, std::size_t bytes) {
        return bytes > kScratchBytes ? kInvalidValue : api_.upload(scratch_, data, bytes, stream_);
    }

    driver::Result download(void *data, std::size_t offset, std::size_t bytes) {
        return offset + bytes > kScratchBytes ? kInvalidValue : api_.download(data, scratch_ + offset, bytes, stream_);
    }

    driver::Result synchronize() {
        return api_.synchronize(stream_);
    }

  private:
    driver::Api api_{};
    driver::Stream stream_ = nullptr;
    driver::Pointer scratch_ = 0;
    void *module_ = nullptr;
};

Device device;

// One operator and the kernel that it runs.
class Operator {
  public:
    constexpr Operator(const char *kernel, unsigned shared_bytes = 0) : kernel_(kernel), shared_bytes_(shared_bytes) {
    }

    driver::Result find() {
        return device.find(kernel_, &function_);
    }

    // Returns the number of kernels launched, or minus the error of the launch.
    NOINLINE int call(Shape shape) {
        driver::Result result =
            shared_bytes_ ? device.launch_ex(function_, shape, shared_bytes_) : device.launch(function_, shape);
        return result ? -result : 1;
    }

  private:
    const char *kernel_;
    unsigned shared_bytes_;
    driver::Function function_ = nullptr;
};

Operator embedding("embedding_kernel"), layer_norm("layer_norm_kernel"), gemm("gemm_kernel"), gelu("gelu_kernel"),
    add("add_kernel"), flash_attention("cudnn_flash_attn_kernel", 49152), softmax("softmax_kernel"),
    argmax("argmax_kernel"), copy("elementwise_copy_kernel");

driver::Result find_kernels() {
    for (Operator *each : {&embedding, &layer_norm, &gemm, &gelu, &add, &flash_attention, &softmax, &argmax, &copy})
        if (driver::Result result = each->find())
            return result;
    return 0;
}

class Dispatcher {
  public:
    NOINLINE static int dispatch(Operator &which, unsigned rows, unsigned columns) {
        int launched = which.call(Shape{rows, columns});
        ++calls_;
        return launched;
    }

  private:
    static unsigned long calls_;
};

unsigned long Dispatcher::calls_ = 0;

} // namespace tiny

#define TINY_OPERATOR(name)                                                                                            \
    extern "C" int tiny_##name(unsigned rows, unsigned columns) {                                                      \
        return tiny::Dispatcher::dispatch(tiny::name, rows, columns);                                                  \
    }

TINY_OPERATOR(embedding)
TINY_OPERATOR(layer_norm)
TINY_OPERATOR(gemm)
TINY_OPERATOR(gelu)
TINY_OPERATOR(add)
TINY_OPERATOR(flash_attention)
TINY_OPERATOR(softmax)
TINY_OPERATOR(argmax)
TINY_OPERATOR(copy)

// The rest returns 0 or minus the driver's error too.
extern "C" int tiny_open(const char *image) {
    driver::Result result = tiny::device.open(image);
    return -(result ? result : tiny::find_kernels());
}

extern "C" int tiny_upload(const void *data, std::size_t bytes) {
    return -tiny::device.upload(data, bytes);
}

extern "C" int tiny_download(void *data, std::size_t offset, std::size_t bytes) {
    return -tiny::device.download(data, offset, bytes);
}

extern "C" int tiny_synchronize() {
    return -tiny::device.synchronize();
}
