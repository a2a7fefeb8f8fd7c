"""Exports architectures of torchvision, timm and transformers, with random weights, as ONNX.

python benchmarks/onnx/architectures.py FOLDER [tf] [tv] [tm]

where torch, torchvision, timm and transformers are installed. FOLDER gets NAME.onnx, and its
inputs i0, i1, ... in NAME.npz
agreement.py compares what runs them.
"""

import os
import sys
import time
import warnings

import numpy as np
import torch

OUT = sys.argv[1]
os.makedirs(OUT, exist_ok=True)
warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)


def save(name, model, args, dynamic=None, opset=18, in_names=None, **kw):
    path = f"{OUT}/{name}.onnx"
    if os.path.exists(path) and os.path.exists(f"{OUT}/{name}.npz"):
        return
    t = time.time()
    try:
        model.eval()
        with torch.no_grad():
            torch.onnx.export(
                model,
                args,
                path,
                opset_version=opset,
                dynamo=kw.pop("dynamo", False),
                input_names=in_names,
                dynamic_axes=dynamic,
                **kw,
            )
        flat = []
        for a in args:
            flat += [a] if torch.is_tensor(a) else (list(a) if isinstance(a, (list, tuple)) else [])
        np.savez(f"{OUT}/{name}.npz", **{f"i{k}": v.numpy() for k, v in enumerate(flat)})
        print(
            name,
            "exported",
            round(time.time() - t, 1),
            os.path.getsize(path) >> 20,
            "MB",
            flush=True,
        )
    except Exception as e:
        if os.path.exists(path):
            os.remove(path)
        print(name, "FAILED", type(e).__name__, str(e)[:300].replace("\n", " "), flush=True)


def tv():
    import torchvision.models as M

    x = torch.randn(2, 3, 96, 96)
    for n in [
        "resnet18",
        "resnet50",
        "alexnet",
        "vgg11_bn",
        "squeezenet1_1",
        "densenet121",
        "googlenet",
        "shufflenet_v2_x0_5",
        "mobilenet_v2",
        "mobilenet_v3_small",
        "mnasnet0_5",
        "efficientnet_b0",
        "efficientnet_v2_s",
        "regnet_y_400mf",
        "resnext50_32x4d",
        "wide_resnet50_2",
        "convnext_tiny",
    ]:
        kw = {"init_weights": False} if n in ("googlenet",) else {}
        save(
            "tv_" + n, getattr(M, n)(weights=None, **kw), (x,), {"x": {0: "batch"}}, in_names=["x"]
        )
    x = torch.randn(1, 3, 224, 224)
    for n in ["vit_b_32", "swin_t", "swin_v2_t", "maxvit_t"]:
        save(
            "tv_" + n,
            getattr(M, n)(weights=None),
            (x,),
            {"x": {0: "batch"}} if n != "maxvit_t" else None,
            in_names=["x"],
        )
    save(
        "tv_inception_v3",
        M.inception_v3(weights=None, init_weights=False),
        (torch.randn(1, 3, 299, 299),),
        in_names=["x"],
    )
    import torchvision.models.segmentation as S

    x = torch.randn(1, 3, 96, 96)
    for n in ["fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"]:
        save(
            "tv_" + n,
            getattr(S, n)(weights=None, weights_backbone=None),
            (x,),
            {"x": {2: "h", 3: "w"}} if n[0] == "l" else None,
            in_names=["x"],
        )
    import torchvision.models.detection as D

    x = torch.rand(3, 160, 160)
    for n in [
        "ssdlite320_mobilenet_v3_large",
        "ssd300_vgg16",
        "retinanet_resnet50_fpn",
        "fcos_resnet50_fpn",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "fasterrcnn_resnet50_fpn",
        "maskrcnn_resnet50_fpn",
        "keypointrcnn_resnet50_fpn",
    ]:
        kw = {}
        if n.startswith(("faster", "mask", "key", "ret", "fcos")):
            kw = dict(min_size=160, max_size=200)
        save(
            "tv_" + n,
            getattr(D, n)(weights=None, weights_backbone=None, **kw),
            ([x],),
            in_names=["x"],
        )
    import torchvision.models.optical_flow as O

    save(
        "tv_raft_small",
        O.raft_small(weights=None),
        (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)),
        in_names=["a", "b"],
        opset=17,
    )
    import torchvision.models.video as V

    save("tv_r3d_18", V.r3d_18(weights=None), (torch.randn(1, 3, 8, 56, 56),), in_names=["x"])
    save("tv_mc3_18", V.mc3_18(weights=None), (torch.randn(1, 3, 8, 56, 56),), in_names=["x"])
    save("tv_s3d", V.s3d(weights=None), (torch.randn(1, 3, 16, 64, 64),), in_names=["x"])


def tm():
    import timm

    small = [
        "resnet10t",
        "resnetv2_50",
        "efficientnet_lite0",
        "mobilenetv4_conv_small",
        "ghostnet_100",
        "hrnet_w18_small",
        "dla34",
        "res2net50_26w_4s",
        "seresnet50",
        "skresnet18",
        "repvgg_a0",
        "regnety_002",
        "fbnetc_100",
        "edgenext_xx_small",
        "convmixer_768_32",
        "gernet_s",
        "nfnet_l0",
        "lcnet_050",
        "tinynet_e",
        "mixnet_s",
        "cspresnet50",
        "vovnet39a",
        "xception41",
        "resnest14d",
        "selecsls42",
        "starnet_s1",
        "fastvit_t8",
        "repghostnet_050",
        "mobileone_s0",
        "inception_next_atto",
    ]
    of_224 = [
        "deit_tiny_patch16_224",
        "mixer_s32_224",
        "pit_ti_224",
        "levit_128s",
        "xcit_nano_12_p16_224",
        "poolformerv2_s12",
        "coat_tiny",
        "twins_pcpvt_small",
        "efficientformer_l1",
        "gmlp_ti16_224",
        "resmlp_12_224",
        "cait_xxs24_224",
        "mvitv2_tiny",
        "tiny_vit_5m_224",
        "maxvit_rmlp_pico_rw_256",
        "eva02_tiny_patch14_224",
    ]
    for n in [*small, *of_224]:
        try:
            m = timm.create_model(n, pretrained=False)
        except Exception as e:
            print("timm", n, str(e)[:100])
            continue
        size = 64 if n in small else 256 if "256" in n else 224
        dynamic = {"x": {0: "batch"}} if n in small else None
        save("timm_" + n, m, (torch.randn(1, 3, size, size),), dynamic, in_names=["x"])


if __name__ == "__main__":
    for k in sys.argv[2:]:
        if k == "tf":
            from transformer_nets import transformers

            transformers(save)
        else:
            globals()[k]()
